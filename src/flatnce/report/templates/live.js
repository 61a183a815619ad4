
// Asks its own server whether the run has moved on, and takes over what changed. What the reader
// has opened, where the focus is and how far the page is scrolled stay as they are.
(() => {
  const every = 2000;
  const said = document.getElementById("live-said");
  const when = document.getElementById("live-when");
  let state = document.documentElement.dataset.state;
  let follows = document.documentElement.dataset.said;
  // When the last measurement was written, by the clock of the reader; NaN if none will follow.
  const dated = (root) => Date.now() - 1000 * Number(root.dataset.age ?? NaN);
  let measured = dated(document.documentElement);

  // A screen reader announces this, so it changes only when there is news.
  const say = (words) => { if (said.textContent !== words) said.textContent = words; };

  // Which element this is, so that it is found again in a newer page.
  const nameOf = (element) => {
    const section = element.closest("section");
    const heading = section ? section.querySelector("h2").textContent : "";
    const alike = [...(section || document).querySelectorAll(element.tagName)];
    return [heading, element.tagName, alike.indexOf(element)].join("/");
  };

  const take = (newer) => {
    const main = document.querySelector("main");
    const open = new Set([...main.querySelectorAll("details[open]")].map(nameOf));
    const held = main.contains(document.activeElement) ? nameOf(document.activeElement) : "";
    // A chart whose values are the same stays as it is, with what the reader has done to it.
    for (const fresh of newer.querySelectorAll("main svg[data-values]")) {
      const name = fresh.getAttribute("aria-labelledby");
      const there = main.querySelector(`svg[aria-labelledby="${name}"]`);
      if (there?.dataset.values === fresh.dataset.values)
        fresh.closest("figure").replaceWith(there.closest("figure"));
    }
    for (const place of ["#lead", "main", "footer"]) {
      const fresh = document.adoptNode(newer.querySelector(place));
      document.querySelector(place).replaceWith(fresh);
    }
    document.dispatchEvent(new Event("updated"));
    for (const element of document.querySelectorAll("main details, main summary, main div")) {
      const name = nameOf(element);
      if (open.has(name)) element.open = true;
      if (held === name) element.focus({ preventScroll: true });
    }
  };

  const look = async () => {
    try {
      const answer = await fetch("state", { cache: "no-store" });
      const newest = answer.ok ? await answer.text() : state;
      if (newest !== state) {
        const page = await fetch("./", { cache: "no-store" });
        if (page.ok) {
          const newer = new DOMParser().parseFromString(await page.text(), "text/html");
          state = newer.documentElement.dataset.state;
          follows = newer.documentElement.dataset.said;
          measured = dated(newer.documentElement);
          take(newer);
          tell();
        }
      }
      say(follows);
    } catch {
      say("The server has stopped: this is the last state.");
    }
    setTimeout(look, every);
  };
  const tell = () => {
    const age = Math.max(0, Math.round((Date.now() - measured) / 1000));
    const minutes = Math.floor(age / 60), hours = Math.floor(minutes / 60);
    const said = hours ? `${hours} h ${minutes % 60} min` : minutes ? `${minutes} min ${age % 60} s` : `${age} s`;
    when.textContent = Number.isNaN(age) ? "" : `Updated ${said} ago.`;
  };
  tell();
  setInterval(tell, 1000);
  setTimeout(look, every);
})();
