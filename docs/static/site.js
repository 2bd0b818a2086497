// What scrolls can be scrolled by the keyboard, and says what it is. The theme's captions are headings of no level.
function nameWhatScrolls() {
  for (const block of document.querySelectorAll("div.highlight pre, .table-wrapper")) {
    if (block.scrollWidth > block.clientWidth || block.scrollHeight > block.clientHeight) {
      block.tabIndex = 0;
      block.setAttribute("role", "region");
      block.setAttribute("aria-label", block.matches("pre") ? "Code" : "Table");
    } else if (block.getAttribute("role") === "region") {
      for (const name of ["tabindex", "role", "aria-label"]) block.removeAttribute(name);
    }
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll(".sidebar-tree .caption")) {
    caption.setAttribute("role", "heading");
    caption.setAttribute("aria-level", "2");
  }
  nameWhatScrolls();
  window.addEventListener("resize", nameWhatScrolls);
});
