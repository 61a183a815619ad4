// Explains a term where the pointer or the focus is on it; the words are those at the end of the
// page, to which the term is a link.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip term-tip";
  tip.id = "term-tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  let shown = null;

  const hide = () => {
    tip.hidden = true;
    shown?.removeAttribute("aria-describedby");
    shown = null;
  };
  const show = (event) => {
    const term = event.target.closest?.("a.term");
    if (term === shown) return;
    hide();
    const words = term && document.querySelector(`${term.hash} .explained`);
    if (!words) return;
    shown = term;
    tip.textContent = words.textContent;
    tip.hidden = false;
    term.setAttribute("aria-describedby", tip.id);
    place();
  };
  const place = () => {
    if (!shown) return;
    const box = shown.getBoundingClientRect(), edge = 8;
    const right = document.documentElement.clientWidth - tip.offsetWidth - edge;
    const above = box.top - tip.offsetHeight - 4;
    tip.style.left = `${Math.max(edge, Math.min(box.left, right))}px`;
    tip.style.top = `${above > edge ? above : box.bottom + 4}px`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("scroll", place, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
