"use strict";
// A little Markdown as DOM nodes: headings, lists, code, bold, italic. Text only ever goes into text nodes, and there
// are no links or images, so nothing that a model writes can become markup or make the browser fetch anything.

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/;

function inline(parent, text) {
  for (const part of text.split(INLINE)) {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) {
      element(parent, "code").textContent = part.slice(1, -1);
    } else if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) {
      element(parent, "strong").textContent = part.slice(2, -2);
    } else if (part.length > 2 && part.startsWith("*") && part.endsWith("*")) {
      element(parent, "em").textContent = part.slice(1, -1);
    } else if (part) {
      parent.append(part);
    }
  }
}

function element(parent, name) {
  const node = document.createElement(name);
  parent.append(node);
  return node;
}

function renderMarkdown(parent, source) {
  parent.replaceChildren();
  const lines = source.split("\n");
  let list = null;
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) inline(element(parent, "p"), paragraph.join("\n"));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const item = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (line.trimStart().startsWith("```")) {
      flush();
      const code = [];
      while (++at < lines.length && !lines[at].trimStart().startsWith("```")) code.push(lines[at]);
      element(element(parent, "pre"), "code").textContent = code.join("\n");
    } else if (item) {
      flush();
      const kind = item[1] === undefined ? "UL" : "OL";
      if (list === null || list.nodeName !== kind) {
        list = element(parent, kind.toLowerCase());
        if (item[1] !== undefined) list.start = Number(item[1]);
      }
      inline(element(list, "li"), item[2]);
      continue;
    } else if (heading) {
      flush();
      // The page has its own first levels.
      inline(element(parent, "h" + Math.min(6, heading[1].length + 2)), heading[2]);
    } else if (!line.trim()) {
      flush();
    } else {
      paragraph.push(line);
    }
    if (line.trim()) list = null;
  }
  flush();
}
