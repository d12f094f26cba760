"use strict";
// Keeps the live part of a page up to date. Every page works without this script.

const live = document.getElementById("live");
const notice = document.getElementById("notice");
const connection = document.getElementById("connection");
const count = document.getElementById("count");
let source = null;

// Keeps the focus, the scroll positions and the folded parts when the live part is replaced.
function replace(html) {
  const open = new Map([...live.querySelectorAll("details[id]")].map((part) => [part.id, part.open]));
  const focused = document.activeElement;
  const inside = focused && live.contains(focused);
  // A summary has no id: its folded part has one.
  const summary = inside && focused.localName === "summary" ? focused.parentElement.id : "";
  const id = inside ? focused.id : "";
  const scrolled = [...live.querySelectorAll(".scroll")].map((part) => [part.scrollLeft, part.scrollTop]);
  const wasRegion = focused && focused.classList.contains("scroll") ? [...live.querySelectorAll(".scroll")].indexOf(focused) : -1;
  live.innerHTML = html;
  open.forEach((isOpen, id) => { const part = document.getElementById(id); if (part) { part.open = isOpen; } });
  const parts = [...live.querySelectorAll(".scroll")];
  parts.forEach((part, at) => { if (scrolled[at]) { [part.scrollLeft, part.scrollTop] = scrolled[at]; } });
  const fold = summary ? document.getElementById(summary) : null;
  const next = fold ? fold.querySelector("summary") : id ? document.getElementById(id) : parts[wasRegion];
  if (next) { next.focus({ preventScroll: true }); }
}

function open() {
  if (source || !live) { return; }
  source = new EventSource(live.dataset.events);
  source.addEventListener("page", (event) => {
    connection.textContent = "This page is up to date.";
    // A text that the user has selected is not taken away.
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) { return; }
    replace(event.data);
  });
  source.addEventListener("count", (event) => {
    const now = Number(event.data);
    if (now > Number(count.textContent)) {
      notice.textContent = now === 1 ? "1 proposal waits for your answer." : `${now} proposals wait for your answer.`;
    } else if (now === 0) {
      notice.textContent = "";
    }
    count.textContent = String(now);
    count.hidden = now === 0;
  });
  source.addEventListener("error", () => {
    connection.textContent = "The connection to the dashboard is lost. Is bottle dashboard --web still running?";
  });
}

function close() {
  if (source) { source.close(); source = null; }
}

// Browsers allow few connections to a server, so a page in the background gives its own up.
document.addEventListener("visibilitychange", () => { if (document.hidden) { close(); } else { open(); } });
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", () => { if (!document.hidden) { open(); } });

// An action may take seconds: its button shows that it was pressed.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") { return; }
  const button = event.target.querySelector("button[type=submit]");
  if (button) { button.disabled = true; button.textContent += " …"; }
});
