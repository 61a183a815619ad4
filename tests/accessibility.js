// What keeps a page from being used by everyone, found by looking at it in the browser.
(() => {
  const found = [];
  const complain = (what, element) =>
    found.push(`${what}: ${(element?.outerHTML || "").slice(0, 90)}`);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seen = (element) => element.checkVisibility();

  if (!document.documentElement.lang) complain("no language");
  if (!document.title) complain("no title");
  if (all("h1").length !== 1) complain("not one h1");
  if (all("main").length !== 1) complain("not one main");

  let level = 0;
  for (const heading of all("h1, h2, h3, h4, h5, h6")) {
    const mine = Number(heading.tagName[1]);
    if (mine > level + 1) complain("heading skips a level", heading);
    if (!heading.textContent.trim()) complain("empty heading", heading);
    level = mine;
  }

  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids))
    if (ids.filter((other) => other === id).length > 1) complain(`id ${id} twice`);

  for (const image of all("img")) if (!image.alt) complain("picture without words", image);
  for (const svg of all("svg")) {
    const names = (svg.getAttribute("aria-labelledby") || "").split(" ");
    const words = names.map((name) => document.getElementById(name)?.textContent || "");
    if (svg.getAttribute("role") !== "img" || words.some((said) => !said.trim()))
      complain("chart without role or words", svg);
  }
  for (const figure of all("figure"))
    if (!figure.querySelector("figcaption") || !figure.querySelector("details table"))
      complain("chart without caption or table", figure);

  for (const table of all("table")) {
    const columns = [...table.querySelectorAll("thead th[scope=col]")].length;
    if (!columns || !table.caption?.textContent.trim()) complain("table without headers", table);
    for (const row of table.tBodies[0].rows)
      if (row.cells.length !== columns || row.cells[0].scope !== "row")
        complain("row without header", row);
  }
  for (const element of all("[tabindex]")) {
    if (element.tabIndex > 0) complain("order of focus is forced", element);
    if (!element.getAttribute("role") || !element.getAttribute("aria-label"))
      complain("can be focused but has no name", element);
  }
  for (const details of all("details")) {
    const summary = details.querySelector(":scope > summary");
    if (!summary?.textContent.trim()) complain("nothing says what opens", details);
    else if (seen(summary) && summary.getBoundingClientRect().height < 24)
      complain("too small to hit", summary);
  }
  if (document.documentElement.scrollWidth > innerWidth) complain("wider than the window");

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgba(colour).slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (rgba(colour)[3] > 0) return colour;
    }
    return "white";
  };
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    const hidden = ["TITLE", "DESC", "SCRIPT", "STYLE"].includes(element.tagName.toUpperCase());
    if (hidden || !words.currentNode.data.trim() || !seen(element)) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = contrast(colour, behind(element));
    if (ratio < (large ? 3 : 4.5)) complain(`text of contrast ${ratio.toFixed(2)}`, element);
  }
  for (const mark of all(".line, .marker, [id*='-mark-'] > path, [id*='-mark-'] use")) {
    const style = getComputedStyle(mark);
    const ratio = contrast(style.fill === "none" ? style.stroke : style.fill, behind(mark));
    if (ratio < 3) complain(`mark of contrast ${ratio.toFixed(2)}`, mark);
  }
  return [...new Set(found)].slice(0, 20);
})()
