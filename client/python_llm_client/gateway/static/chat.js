"use strict";
// The chat page of the gateway: one conversation, kept in this page only. Talks to /v1, as any other client does.

const $ = (id) => document.getElementById(id);
const turns = []; // {role, content, note, failed}
let running = null; // The AbortController of the answer under way.

// ---- Looks and settings -------------------------------------------------------------------------------------------

const KEPT = ["system", "temperature", "top_p", "max_tokens", "seed"];

function keep() {
  localStorage.setItem("settings", JSON.stringify(Object.fromEntries(KEPT.map((id) => [id, $(id).value]))));
}

function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem("settings") || "{}");
    for (const id of KEPT) if (typeof kept[id] === "string") $(id).value = kept[id];
  } catch {
    localStorage.removeItem("settings");
  }
  // A key stays no longer than this tab.
  $("key").value = sessionStorage.getItem("key") || "";
  const dark = localStorage.getItem("theme");
  setTheme(dark === null ? matchMedia("(prefers-color-scheme: dark)").matches : dark === "dark");
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  $("theme").setAttribute("aria-pressed", String(dark));
}

// ---- The server ---------------------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function loadModels() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await failure(response));
    const names = (await response.json()).data.map((model) => model.id);
    const chosen = $("model").value || localStorage.getItem("model");
    $("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
    tell(names.length ? "" : "the server has no model");
  } catch (error) {
    tell(`models could not be listed: ${error.message}`, true);
  }
}

function body() {
  const system = $("system").value.trim();
  // A question without an answer goes with it when another follows: templates want the roles by turns.
  const said = turns
    .filter((turn) => !turn.failed)
    .filter((turn, i, all) => turn.role !== "user" || all[i + 1]?.role !== "user")
    .map(({ role, content }) => ({ role, content }));
  const request = {
    model: $("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const id of ["temperature", "top_p", "max_tokens", "seed"]) {
    if ($(id).value !== "") request[id] = Number($(id).value);
  }
  return request;
}

async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

async function answer() {
  const request = body();
  const turn = { role: "assistant", content: "", note: "" };
  turns.push(turn);
  const card = show(turn);
  running = new AbortController();
  busy(true);
  tell("The model is answering.");
  const start = performance.now();
  let first = null;
  let usage = null;
  let reason = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(request),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const chunk of chunks(response)) {
      usage = chunk.usage || usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason || reason;
      if (choice.delta.content) {
        first ??= performance.now();
        turn.content += choice.delta.content;
        drawSoon(card, turn);
      }
    }
    turn.note = statistics(usage, reason, first === null ? 0 : first - start, performance.now() - (first ?? start));
    tell("The answer is complete.");
  } catch (error) {
    const stopped = error.name === "AbortError";
    turn.note = stopped ? "stopped" : error.message;
    // Half an answer is a part of the conversation; none is not.
    turn.failed = !turn.content;
    turn.error = !stopped;
    tell(stopped ? "The answer was stopped." : `The answer failed: ${error.message}`, !stopped);
  } finally {
    running = null;
    busy(false);
    redraw();
    $("prompt").focus();
  }
}

function statistics(usage, reason, firstMs, restMs) {
  const parts = [];
  if (usage) {
    const { prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details } = usage;
    const cached = details && details.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
    parts.push(`${prompt} prompt tokens${cached}`, `${tokens} tokens`);
    if (tokens > 1 && restMs > 0) parts.push(`${(((tokens - 1) * 1000) / restMs).toFixed(1)} tokens/s`);
  }
  parts.push(`first after ${Math.round(firstMs)} ms`);
  if (reason === "length") parts.push("cut at max tokens");
  return parts.join(" · ");
}

// ---- The page -----------------------------------------------------------------------------------------------------

function tell(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", bad);
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("new").disabled = on;
  $("log").setAttribute("aria-busy", String(on));
  for (const button of document.querySelectorAll("article button")) button.disabled = on;
}

function make(parent, name, text, click) {
  const node = document.createElement(name);
  if (text) node.textContent = text;
  if (click) {
    node.type = "button";
    node.addEventListener("click", click);
  }
  parent.append(node);
  return node;
}

function show(turn) {
  const at = turns.indexOf(turn);
  const card = make($("log"), "article");
  card.className = turn.role + (turn.error ? " failed" : "");
  make(card, "h2", turn.role === "user" ? "You" : "Model");
  make(card, "div").className = "text";
  const footer = make(card, "footer");
  if (turn.note) make(footer, "span", turn.note).className = turn.error ? "error" : "";
  if (turn.role === "user") {
    make(footer, "button", "Edit", () => edit(card, at)).setAttribute("aria-label", "Edit this message and ask again");
  } else {
    make(footer, "button", "Retry", () => retry(at)).setAttribute("aria-label", "Ask for another answer");
    const copy = make(footer, "button", "Copy", () => navigator.clipboard.writeText(turn.content).then(() => tell("Copied.")));
    copy.setAttribute("aria-label", "Copy this answer");
  }
  draw(card, turn);
  return card;
}

function draw(card, turn) {
  const log = $("log");
  const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const text = card.querySelector(".text");
  if (turn.role === "user") {
    text.replaceChildren();
    make(text, "p").textContent = turn.content;
  } else renderMarkdown(text, turn.content);
  if (follow) log.scrollTop = log.scrollHeight;
}

let drawing = false;

// At most once a frame: tokens may come faster than a text can be laid out.
function drawSoon(card, turn) {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (card.isConnected) draw(card, turn);
  });
}

function redraw() {
  $("log").replaceChildren();
  turns.forEach(show);
  $("log").scrollTop = $("log").scrollHeight;
}

function edit(card, at) {
  const box = document.createElement("textarea");
  box.value = turns[at].content;
  box.rows = 3;
  box.setAttribute("aria-label", "Your message");
  card.querySelector(".text").replaceChildren(box);
  const footer = card.querySelector("footer");
  footer.replaceChildren();
  const ask = () => {
    if (running || !box.value.trim()) return;
    turns.splice(at, turns.length, { role: "user", content: box.value.trim() });
    redraw();
    answer();
  };
  make(footer, "button", "Ask again", ask);
  make(footer, "button", "Leave as it was", redraw);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") redraw();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask();
    }
  });
  box.focus();
}

function retry(at) {
  if (running) return;
  turns.splice(at);
  redraw();
  answer();
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || running) return;
  if (!$("model").value) {
    tell("there is no model to ask", true);
    return;
  }
  $("prompt").value = "";
  turns.push({ role: "user", content: text });
  redraw();
  answer();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("stop").addEventListener("click", () => running && running.abort());
$("new").addEventListener("click", () => {
  turns.length = 0;
  redraw();
  tell("");
  $("prompt").focus();
});
$("theme").addEventListener("click", () => {
  const dark = !document.documentElement.classList.contains("dark");
  localStorage.setItem("theme", dark ? "dark" : "light");
  setTheme(dark);
});
$("model").addEventListener("change", () => localStorage.setItem("model", $("model").value));
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value.trim());
  loadModels();
});
for (const id of KEPT) $(id).addEventListener("change", keep);

restore();
loadModels();
