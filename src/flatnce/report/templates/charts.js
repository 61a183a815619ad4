// Lets a reader point at a chart to read its values, and zoom in. The drawing itself is moved: its
// lines and marks are scaled and its ticks are replaced. Without this script the chart and the
// table under it are whole.
(() => {
  const views = new Map(); // what is shown of each chart; it survives an update of the page
  const keys = "Arrow keys read values, plus and minus zoom, 0 shows everything.";

  const make = (name, parent, attributes = {}, words = "") => {
    const svg = parent instanceof SVGElement;
    const element = svg ? document.createElementNS(parent.namespaceURI, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (words) element.textContent = words;
    parent.append(element);
    return element;
  };
  const written = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

  const enhance = (svg) => {
    const { kind, names, lines, x, y } = JSON.parse(svg.dataset.values);
    const name = svg.getAttribute("aria-labelledby").split("-title")[0];
    const part = (ending) => svg.querySelector(`[id="${name}-${ending}"]`);
    const box = part("patch_2").getBBox();
    const zooms = kind === "lines" || kind === "points";
    // Where a value lies: from 0 to 1 along its axis.
    const share = (axis, value, [low, high] = axis.ends) =>
      axis.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    const value = (axis, at, [low, high] = axis.ends) =>
      axis.log ? low * (high / low) ** at : low + at * (high - low);
    const view = views.get(name) || { x: x.ends, y: y.ends };
    const across = (v) => box.x + box.width * share(x, v, view.x);
    const up = (v) => box.y + box.height * (1 - share(y, v, view.y));

    const plot = document.createElement("div");
    plot.className = "plot";
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${svg.querySelector("title").textContent}. ${zooms ? keys : "Arrow keys read values."}`);
    svg.replaceWith(plot);
    plot.append(svg);
    const tip = make("output", plot, { class: "tip", "aria-live": "off", hidden: "" });
    const whole = make("button", plot, { type: "button", hidden: "" }, "Show all");
    const over = make("g", svg, { "pointer-events": "none" });
    const look = lines.map((_, n) => part(`mark-${n}`)?.querySelector("path[style*=stroke], use") || part(`mark-${n}-0`)?.querySelector("path"));
    const colour = (n) => {
      const style = look[n]?.style;
      return !style ? "var(--ink)" : style.fill && style.fill !== "none" ? style.fill : style.stroke;
    };

    // What can be read, in order along the chart: a place, and the lines that have a value there.
    const places = new Map();
    lines.forEach((line, n) => {
      if (!Array.isArray(line.y)) return;
      line.y.forEach((v, i) => {
        if (v === null) return;
        const at = kind === "lines" ? line.x[i] : kind === "points" ? `${n} ${i}` : i;
        if (!places.has(at)) places.set(at, { at, found: [] });
        places.get(at).found.push({ n, v, x: line.x ? line.x[i] : i, spread: line.spread?.[i] });
      });
    });
    const order = [...places.values()].sort((a, b) => (kind === "points" ? 0 : a.at - b.at));
    const middle = ({ found: [one] }) =>
      kind === "forest" ? [across(one.v), up(one.x)] : [across(one.x), up(one.v)];
    const seen = (place) => {
      const [left, top] = middle(place);
      return left >= box.x - 1 && left <= box.x + box.width + 1 && (kind !== "points" || (top >= box.y - 1 && top <= box.y + box.height + 1));
    };
    let now = -1;

    const hide = () => { now = -1; tip.hidden = true; over.replaceChildren(); };
    const show = (number) => {
      now = number;
      over.replaceChildren();
      tip.replaceChildren();
      const place = order[number], [left, top] = middle(place);
      const head = kind === "lines" ? `${x.label} ${written(place.at)}` : kind === "points" ? lines[place.found[0].n].label : names[place.at];
      make("strong", tip, {}, head);
      if (kind === "lines") make("path", over, { d: `M ${left} ${box.y} v ${box.height}`, class: "cursor" });
      for (const one of place.found) {
        const line = make("span", tip);
        make("i", line).style.background = colour(one.n);
        const spread = one.spread ? ` ± ${written(one.spread)}` : "";
        const said = kind === "points" ? `${written(one.x)}, ${written(one.v)}` : `${lines[one.n].label} ${written(one.v)}${spread}`;
        line.append(said);
        const [cx, cy] = middle({ found: [one] });
        if (zooms) make("circle", over, { cx, cy, r: 5, class: "cursor" });
      }
      for (const line of lines)
        if (!Array.isArray(line.y)) make("span", tip, {}, `${line.label} ${written(line.y)}`);
      tip.hidden = false;
      const scale = svg.clientWidth / svg.viewBox.baseVal.width;
      const most = Math.max(0, plot.clientWidth - tip.offsetWidth);
      const beside = left * scale + 12;
      tip.style.left = `${Math.min(Math.max(0, beside > most ? left * scale - tip.offsetWidth - 12 : beside), most)}px`;
      tip.style.top = `${Math.max(0, (kind === "lines" ? box.y : top) * scale)}px`;
    };

    const ticks = ([low, high], log) => {
      if (log && high / low > 20) {
        const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
        return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
      }
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
      const first = Math.ceil(low / step - 1e-9);
      return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
    };

    // The drawing as it was, and the drawing moved.
    const drawn = [...svg.querySelectorAll("[id*='-mark-'] path[d], [id*='-reference-'] path[d], [id$='-fit'] path[d]")]
      .filter((one) => !one.closest("defs")).map((one) => [one, one.getAttribute("d")]);
    const marks = [...svg.querySelectorAll("[id*='-mark-'] use")].map((one) => [one, Number(one.getAttribute("x")), Number(one.getAttribute("y"))]);
    const bands = [...svg.querySelectorAll("[id*='-band-'] use, [id*='-band-'] > path, [id*='-band-'] g > path")].filter((one) => !one.closest("defs"));
    const fixed = [...svg.querySelectorAll("[id*='-xtick_'], [id*='-ytick_']")];
    let scales = null;
    const redraw = () => {
      const all = view.x === x.ends && view.y === y.ends;
      scales?.remove();
      scales = null;
      const moved = (axis, ends, low, size, flip) => {
        const [a, b] = ends.map((end) => share(axis, end)), factor = 1 / (b - a);
        const shift = flip ? low + size * (1 - factor * (1 - a)) - factor * low : low - factor * (size * a + low);
        return [factor, shift];
      };
      const [sx, tx] = moved(x, view.x, box.x, box.width), [sy, ty] = moved(y, view.y, box.y, box.height, true);
      for (const [path, d] of drawn)
        path.setAttribute("d", d.replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, px, py) => `${sx * px + tx} ${sy * py + ty}`));
      for (const [mark, px, py] of marks) {
        const [nx, ny] = [sx * px + tx, sy * py + ty];
        mark.setAttribute("x", nx);
        mark.setAttribute("y", ny);
        mark.style.display = nx < box.x - 4 || nx > box.x + box.width + 4 || ny < box.y - 4 || ny > box.y + box.height + 4 ? "none" : "";
      }
      for (const band of bands) band.setAttribute("transform", `matrix(${sx} 0 0 ${sy} ${tx} ${ty})`);
      for (const tick of fixed) tick.style.display = all ? "" : "none";
      whole.hidden = all;
      if (all) return;
      scales = document.createElementNS(svg.namespaceURI, "g");
      part("patch_2").after(scales);
      for (const v of ticks(view.x, x.log)) {
        make("path", scales, { d: `M ${across(v)} ${box.y} v ${box.height}`, class: "grid" });
        make("text", scales, { x: across(v), y: box.y + box.height + 18, "text-anchor": "middle" }, written(v));
      }
      for (const v of ticks(view.y, y.log)) {
        make("path", scales, { d: `M ${box.x} ${up(v)} h ${box.width}`, class: "grid" });
        make("text", scales, { x: box.x - 7, y: up(v) + 5, "text-anchor": "end" }, written(v));
      }
    };
    const zoom = (ends, heights) => {
      const inside = (axis, [low, high]) => {
        const [a, b] = [low, high].map((end) => Math.min(1, Math.max(0, share(axis, end))));
        return b - a > 0.999 ? axis.ends : [value(axis, a), value(axis, b)];
      };
      view.x = inside(x, ends);
      if (kind === "lines") {
        const within = lines.filter((line) => line.x).flatMap((line) => line.y.flatMap((v, i) =>
          v === null || line.x[i] < view.x[0] || line.x[i] > view.x[1] ? [] : [v - (line.spread?.[i] || 0), v + (line.spread?.[i] || 0)]));
        if (view.x === x.ends) view.y = y.ends;
        else if (within.length) {
          const [low, high] = [Math.min(...within), Math.max(...within)];
          const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 0.1;
          view.y = y.log ? [low / 1.1, high * 1.1] : [low - room, high + room];
        }
      } else view.y = inside(y, heights);
      if (view.x === x.ends && view.y === y.ends) views.delete(name);
      else views.set(name, view);
      redraw();
    };
    const reset = () => { hide(); zoom(x.ends, y.ends); };
    whole.addEventListener("click", () => { reset(); plot.focus(); });

    const spot = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return [Math.min(Math.max(at.x, box.x), box.x + box.width), Math.min(Math.max(at.y, box.y), box.y + box.height)];
    };
    let start = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button || !zooms) return;
      start = spot(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const [px, py] = spot(event);
      if (start && Math.abs(px - start[0]) > 4) {
        hide();
        const [left, top] = [Math.min(px, start[0]), kind === "lines" ? box.y : Math.min(py, start[1])];
        const height = kind === "lines" ? box.height : Math.abs(py - start[1]);
        make("rect", over, { x: left, y: top, width: Math.abs(px - start[0]), height, class: "chosen" });
        return;
      }
      const far = (place) => {
        const [left, top] = middle(place);
        if (kind === "forest") return Math.abs(top - py);
        return kind === "points" ? Math.hypot(left - px, top - py) : Math.abs(left - px);
      };
      let best = -1;
      order.forEach((place, n) => { if (seen(place) && (best < 0 || far(place) < far(order[best]))) best = n; });
      if (best < 0 || (kind === "points" && far(order[best]) > 30)) hide();
      else show(best);
    });
    svg.addEventListener("pointerup", (event) => {
      const begun = start, [px, py] = spot(event);
      start = null;
      if (!begun || Math.abs(px - begun[0]) < 8) return;
      hide();
      const along = [px, begun[0]].sort((a, b) => a - b).map((at) => value(x, (at - box.x) / box.width, view.x));
      const heights = [py, begun[1]].sort((a, b) => b - a).map((at) => value(y, 1 - (at - box.y) / box.height, view.y));
      zoom(along, heights);
    });
    svg.addEventListener("pointercancel", () => { start = null; hide(); });
    svg.addEventListener("pointerleave", () => { if (!start) hide(); });
    svg.addEventListener("dblclick", () => { if (zooms) reset(); });
    plot.addEventListener("blur", hide);

    const read = (to) => {
      tip.setAttribute("aria-live", "polite");
      const number = Math.min(Math.max(to, 0), order.length - 1), place = order[number];
      if (zooms && !seen(place)) { // move what is shown along with the reader
        const from = share(x, place.found[0].x) - (share(x, view.x[1]) - share(x, view.x[0])) / 2;
        const width = share(x, view.x[1]) - share(x, view.x[0]), low = Math.min(Math.max(from, 0), 1 - width);
        zoom([value(x, low), value(x, low + width)], y.ends);
      }
      show(number);
    };
    const closer = (factor) => {
      const at = now < 0 ? (share(x, view.x[0]) + share(x, view.x[1])) / 2 : share(x, order[now].found[0].x);
      const half = (factor * (share(x, view.x[1]) - share(x, view.x[0]))) / 2, kept = now;
      const tall = now < 0 ? (share(y, view.y[0]) + share(y, view.y[1])) / 2 : share(y, order[now].found[0].v);
      const heights = (factor * (share(y, view.y[1]) - share(y, view.y[0]))) / 2;
      zoom([value(x, at - half), value(x, at + half)], [value(y, tall - heights), value(y, tall + heights)]);
      if (kept >= 0 && seen(order[kept])) show(kept);
    };
    plot.addEventListener("keydown", (event) => {
      if (event.target !== plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const acts = {
        ArrowRight: () => read(now + 1),
        ArrowLeft: () => read(now < 0 ? order.length - 1 : now - 1),
        Home: () => read(0),
        End: () => read(order.length - 1),
        Escape: reset,
        ...(zooms ? { "+": () => closer(0.5), "=": () => closer(0.5), "-": () => closer(2), 0: reset } : {}),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
    if (views.has(name)) redraw();
  };

  const all = () => document.querySelectorAll("figure > svg[data-values]").forEach(enhance);
  document.addEventListener("updated", all);
  all();
})();
