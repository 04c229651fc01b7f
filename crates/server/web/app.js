"use strict";
// The chat page. Text of the model reaches the page by textContent alone.

const $ = (id) => document.getElementById(id);
const ui = Object.fromEntries(
  ["model", "dot", "device", "inside", "new", "theme", "scroll", "welcome", "messages", "announce", "composer", "input",
    "send", "context", "settings", "system", "temperature", "max-tokens", "seed", "key", "export", "import", "file",
    "settings-error", "open-settings"].map((id) => [id, $(id)]));

// ---- Small helpers

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function button(label, act, className = "button") {
  const element = make("button", className, label);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

function kept(storage, name, otherwise) {
  try { return JSON.parse(storage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

function keep(storage, name, value) {
  try { storage.setItem(name, JSON.stringify(value)); } catch { say("This browser keeps nothing: the conversation ends with the tab."); }
}

function say(text) { ui.announce.textContent = text; }

async function copy(text, by) {
  let done = true;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = make("textarea", "hidden");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    by.focus();
  }
  const label = by.textContent;
  by.textContent = done ? "Copied" : "Not allowed";
  say(by.textContent);
  setTimeout(() => { by.textContent = label; }, 1500);
}

// ---- Markdown: blocks, then what is inside a line. Everything becomes nodes; there is no HTML.

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;

function markdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const out = document.createDocumentFragment();
  for (let i = 0; i < lines.length;) i = block(lines, i, out);
  return out;
}

// Appends the block that starts at a line; the line after it.
function block(lines, i, out) {
  const line = lines[i];
  if (!line.trim()) return i + 1;
  const fence = FENCE.exec(line);
  if (fence) return codeBlock(lines, i, fence, out);
  const heading = /^(#{1,6})\s+(.*)$/.exec(line);
  if (heading) {
    out.append(spans(heading[2].replace(/\s#+\s*$/, ""), make("h" + Math.min(5, heading[1].length + 2))));
    return i + 1;
  }
  if (RULE.test(line)) { out.append(make("hr")); return i + 1; }
  if (line.startsWith(">")) {
    const from = i;
    while (i < lines.length && lines[i].startsWith(">")) i++;
    const inner = lines.slice(from, i).map((l) => l.slice(1).replace(/^ /, ""));
    // Deeply nested quotes stay text: depth must not be the model's to choose.
    const nested = /^(>\s?){4}/.test(line);
    out.append(make("blockquote", "", nested ? inner.join("\n") : markdown(inner.join("\n"))));
    return i;
  }
  if (ITEM.test(line)) return list(lines, i, out);
  if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[i + 1] ?? "") && lines[i + 1].includes("|")) return table(lines, i, out);
  const from = i++;
  while (i < lines.length && lines[i].trim() && !FENCE.test(lines[i]) && !ITEM.test(lines[i]) && !/^(#{1,6}\s|>)/.test(lines[i])) i++;
  out.append(spans(lines.slice(from, i).join("\n"), make("p")));
  return i;
}

function codeBlock(lines, i, [, mark, language], out) {
  const code = [];
  for (i++; i < lines.length; i++) {
    const end = lines[i].trim();
    if (end.startsWith(mark) && end === mark[0].repeat(end.length)) break;
    code.push(lines[i]);
  }
  const text = code.join("\n");
  const copyButton = button("Copy", () => copy(text, copyButton));
  copyButton.setAttribute("aria-label", "Copy code");
  const pre = make("pre", "", make("code", "", text));
  pre.tabIndex = 0;
  out.append(make("div", "block", make("div", "top", make("span", "quiet", language), copyButton), pre));
  return i + 1;
}

function list(lines, i, out) {
  const open = [];
  for (; i < lines.length; i++) {
    const item = ITEM.exec(lines[i]);
    if (!item) {
      const goesOn = lines[i].trim() ? /^\s{2,}/.test(lines[i]) : ITEM.test(lines[i + 1] ?? "");
      if (!goesOn) break;
      if (lines[i].trim()) spans("\n" + lines[i].trim(), open.at(-1).element.lastChild);
      continue;
    }
    const indent = item[1].replace(/\t/g, "    ").length;
    const ordered = /\d/.test(item[2]);
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    const last = open.at(-1);
    if (!last || (indent >= last.indent + 2 && open.length < 6)) {
      const element = make(ordered ? "ol" : "ul");
      if (ordered) element.start = parseInt(item[2], 10);
      (last ? last.element.lastChild : out).append(element);
      open.push({ indent, element });
    } else if (open.length === 1 && (last.element.tagName === "OL") !== ordered) break;
    open.at(-1).element.append(spans(item[3], make("li")));
  }
  return i;
}

function cells(line) { return line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim()); }

function table(lines, i, out) {
  const row = (line, tag) => make("tr", "", ...cells(line).map((c) => spans(c, make(tag))));
  const head = make("thead", "", row(lines[i], "th"));
  const body = make("tbody");
  for (i += 2; i < lines.length && lines[i].includes("|"); i++) body.append(row(lines[i], "td"));
  out.append(make("table", "", head, body));
  return i;
}

const SPAN = /(`+)([^`]|[^`][^]{0,4000}?[^`])\1(?!`)|\*\*(?=\S)([^*]{1,2000})\*\*|\*(?=[^\s*])([^*\n]{1,1000})\*|(?<!\w)_(?=[^\s_])([^_\n]{1,1000})_(?!\w)|~~([^~\n]{1,1000})~~|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s)]{1,2000}|mailto:[^\s)]{1,500})\)/g;

// Appends a line's text with its marks; what is between marks is read once more, to a depth of three.
function spans(text, into, depth = 0) {
  let from = 0;
  for (const m of text.matchAll(SPAN)) {
    into.append(text.slice(from, m.index));
    from = m.index + m[0].length;
    const inner = (tag, t) => (depth < 3 ? spans(t, make(tag), depth + 1) : make(tag, "", t));
    if (m[1]) into.append(make("code", "", m[2]));
    else if (m[3] !== undefined) into.append(inner("strong", m[3]));
    else if ((m[4] ?? m[5]) !== undefined) into.append(inner("em", m[4] ?? m[5]));
    else if (m[6] !== undefined) into.append(inner("s", m[6]));
    else {
      const a = inner("a", m[7]);
      a.href = m[8];
      a.rel = "noopener noreferrer";
      a.target = "_blank";
      into.append(a);
    }
  }
  into.append(text.slice(from));
  return into;
}

// ---- Conversation. A message: {role, text, thoughts?, truth?, error?}

let talk = read(kept(localStorage, "minfer.talk", [])) ?? [];
let options = kept(localStorage, "minfer.options", {});
let running = null;

// A conversation from outside, or null if it is none.
function read(value) {
  const good = (m) => m && ["user", "assistant"].includes(m.role) && typeof m.text === "string"
    && ["thoughts", "truth"].every((k) => m[k] === undefined || typeof m[k] === "string");
  if (!Array.isArray(value) || !value.every(good)) return null;
  return value.map(({ role, text, thoughts, truth }) => ({ role, text, thoughts, truth }));
}

function save() { keep(localStorage, "minfer.talk", talk); }

function show() {
  ui.messages.replaceChildren(...talk.map((m, i) => messageElement(m, i)));
  ui.welcome.hidden = talk.length > 0;
}

function messageElement(m, i) {
  const element = make("article", `message ${m.role}`);
  element.setAttribute("aria-label", m.role === "user" ? "You" : "Answer");
  fill(element, m, i);
  return element;
}

// Draws a message; a part that has not changed stays, so that what is selected or unfolded does.
function fill(element, m, i) {
  const live = running?.message === m;
  const parts = [];
  if (m.thoughts) parts.push(thoughts(element, m, live));
  const body = make("div", "body");
  if (m.role === "user") body.textContent = m.text;
  else body.append(markdown(m.text));
  if (m.text) parts.push(body);
  if (live && !m.text && !m.thoughts) {
    const dots = make("span", "waiting", make("i"), make("i"), make("i"));
    dots.setAttribute("aria-label", "Waiting for the answer");
    dots.setAttribute("role", "img");
    parts.push(dots);
  }
  if (m.error) parts.push(errorBox(m.error));
  if (!live) parts.push(foot(m, i));
  element.setAttribute("aria-busy", String(live));
  element.replaceChildren(...parts);
}

function thoughts(element, m, live) {
  const old = element.querySelector(".thoughts");
  const details = old ?? make("details", "thoughts", make("summary"), make("div", "inner"));
  details.firstChild.textContent = live && !m.text ? "Thinking…" : "Thoughts";
  details.lastChild.textContent = m.thoughts.trim();
  return details;
}

function foot(m, i) {
  const actions = make("span", "actions");
  if (m.text) {
    const copyButton = button("Copy", () => copy(m.text, copyButton));
    actions.append(copyButton);
  }
  const last = m.role === "user" ? i >= talk.length - 2 : i === talk.length - 1;
  if (last && m.role === "user" && !running) actions.append(button("Edit", () => edit(i)));
  if (last && m.role === "assistant" && !m.error) actions.append(button("Regenerate", () => again(i)));
  const box = make("div", "foot", actions);
  if (m.truth) box.append(make("span", "truth quiet", m.truth));
  return box;
}

function errorBox(error) {
  const box = make("div", "error", make("p", "", make("strong", "", error.title)), make("p", "", error.message));
  const details = [error.code, error.param && `field ${error.param}`, error.id && `request ${error.id}`].filter(Boolean);
  if (details.length) box.append(make("p", "quiet", details.join(" · ")));
  const actions = make("div", "actions", button("Try again", () => again(talk.length - 1)));
  if (error.status === 401) actions.append(button("Enter a key", () => openSettings(ui.key)));
  box.append(actions);
  return box;
}

// ---- Asking

function number(input) { return input.value.trim() === "" ? undefined : Number(input.value); }

function request() {
  const system = (options.system ?? "").trim();
  const messages = talk.filter((m) => m.text).map((m) => ({ role: m.role, content: m.text }));
  if (system) messages.unshift({ role: "system", content: system });
  const body = { model: ui.model.value, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "max_tokens", "seed"]) if (options[name] !== undefined) body[name] = options[name];
  return body;
}

function headers(more = {}) {
  const key = kept(sessionStorage, "minfer.key", "");
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

async function answer() {
  const body = request();
  const message = { role: "assistant", text: "", thoughts: "" };
  const abort = new AbortController();
  const started = performance.now();
  running = { message, abort };
  talk.push(message);
  show();
  toEnd();
  busy(true);
  say("Answering");
  const seen = {};
  try {
    await receive(body, message, abort.signal, seen);
  } catch (error) {
    if (abort.signal.aborted) seen.finish = "stopped by you";
    else message.error = told(error, seen.response);
  }
  running = null;
  message.truth = truth(seen, message, performance.now() - started);
  if (!message.thoughts) delete message.thoughts;
  save();
  show();
  stick();
  busy(false);
  say(message.error ? `Error: ${message.error.title}. ${message.error.message}` : "The answer is complete.");
}

async function receive(body, message, signal, seen) {
  const init = { method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body), signal };
  const response = await fetch("v1/chat/completions", init);
  seen.response = response;
  if (!response.ok) {
    const said = await response.text();
    let error;
    try { error = JSON.parse(said).error; } catch { /* not ours: shown as it is */ }
    throw { status: response.status, ...(error ?? { message: said.slice(0, 2000) }) };
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw { message: "The connection ended before the answer did." };
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      take(JSON.parse(data), message, seen);
    }
    redraw(message);
  }
}

function take(event, message, seen) {
  if (event.error) throw event.error;
  if (event.usage) seen.usage = event.usage;
  if (event.timings) seen.timings = event.timings;
  if (event.seed !== undefined) seen.seed = event.seed;
  const choice = event.choices?.[0];
  if (!choice) return;
  message.text += choice.delta?.content ?? "";
  message.thoughts += choice.delta?.reasoning_content ?? "";
  if (choice.finish_reason) seen.finish = choice.finish_reason;
}

let drawing = false;
function redraw(message) {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (running?.message !== message) return;
    const follow = atEnd();
    fill(ui.messages.lastChild, message, talk.length - 1);
    if (follow) toEnd();
  });
}

const TITLES = {
  400: "The server refuses this request", 401: "The server wants an API key", 403: "Not allowed", 404: "Not found",
  413: "The message is too large", 429: "Too many requests", 503: "The server is busy", 500: "The engine failed",
};

function told(error, response) {
  const status = error.status ?? (response && !response.ok ? response.status : undefined);
  const lost = error instanceof TypeError;
  const wait = response?.headers.get("retry-after");
  let message = lost ? "Is it still running? The request did not get through." : error.message || String(error);
  if (status >= 429 && wait) message += ` Try again in ${wait} s.`;
  const title = lost ? "The server cannot be reached" : TITLES[status] ?? "The answer broke off";
  return { title: status ? `${title} (${status})` : title, status, message, code: error.code, param: error.param, id: response?.headers.get("x-request-id") };
}

// What is known of an answer. Figures are the server's; without its times there is no rate.
function truth(seen, message, elapsed) {
  const { usage, timings, response } = seen;
  const head = (name) => response?.headers.get(name);
  const parts = [head("x-minfer-device")];
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`);
    if (timings?.decode_ms > 0) parts.push(`${(1e3 * usage.completion_tokens / timings.decode_ms).toFixed(1)} tokens/s`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} cached` : ""}`);
    const limit = Number(head("x-minfer-context"));
    ui.context.textContent = limit ? `context ${usage.total_tokens ?? usage.prompt_tokens + usage.completion_tokens} of ${limit}` : "";
  }
  if (timings?.queue_ms >= 50) parts.push(`waited ${(timings.queue_ms / 1e3).toFixed(1)} s`);
  if (message.text || message.thoughts) parts.push(`${(elapsed / 1e3).toFixed(1)} s`);
  const seed = seen.seed ?? head("x-minfer-seed");
  if (seed !== undefined && seed !== null) parts.push(`seed ${seed}`);
  if (seen.finish) parts.push({ stop: "ended", length: "stopped at the limit of tokens" }[seen.finish] ?? seen.finish);
  if (head("x-minfer-warning")) parts.push(head("x-minfer-warning"));
  return parts.filter(Boolean).join(" · ") || undefined;
}

function send() {
  const text = ui.input.value.trim();
  if (!text || running) return;
  // Answers that failed without a word are not part of what is asked next.
  if (talk.at(-1)?.error && !talk.at(-1).text) talk.pop();
  talk.push({ role: "user", text });
  ui.input.value = "";
  grow();
  answer();
}

function again(i) {
  if (running) return;
  talk.splice(i);
  answer();
  ui.input.focus();
}

function edit(i) {
  if (running) return;
  ui.input.value = talk[i].text;
  talk.splice(i);
  save();
  show();
  grow();
  ui.input.focus();
}

function stop() { running?.abort.abort(); }

function busy(is) {
  ui.send.classList.toggle("stop", is);
  ui.send.setAttribute("aria-label", is ? "Stop" : "Send");
  ui.send.title = is ? "Stop (Escape)" : "Send (Enter)";
  ui.send.disabled = !is && !ui.input.value.trim();
  ui.new.disabled = is;
}

// ---- Page

function atEnd() { return ui.scroll.scrollHeight - ui.scroll.scrollTop - ui.scroll.clientHeight < 80; }
function toEnd() { ui.scroll.scrollTop = ui.scroll.scrollHeight; }
let stuck = true;
ui.scroll.addEventListener("scroll", () => { stuck = atEnd(); }, { passive: true });
function stick() { if (stuck) toEnd(); }

function grow() {
  ui.input.style.height = "auto";
  ui.input.style.height = `${ui.input.scrollHeight}px`;
  busy(running !== null);
}

async function models() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw new Error(response.status === 401 ? "an API key is wanted" : `status ${response.status}`);
    const { data } = await response.json();
    if (!data?.length) throw new Error("no model");
    ui.model.replaceChildren(...data.map((m) => new Option(m.id, m.id)));
    ui.model.disabled = data.length < 2;
    const wanted = kept(localStorage, "minfer.model", "");
    if (data.some((m) => m.id === wanted)) ui.model.value = wanted;
    const shown = () => {
      const m = data.find((one) => one.id === ui.model.value);
      const limit = m?.context_length ? `context ${m.context_length}` : "";
      ui.device.textContent = [m?.device, limit].filter(Boolean).join(" · ");
    };
    ui.model.onchange = () => { keep(localStorage, "minfer.model", ui.model.value); shown(); };
    shown();
    ui.dot.className = "dot good";
    document.title = `${ui.model.value} · minfer`;
  } catch (error) {
    ui.dot.className = "dot bad";
    const text = error instanceof TypeError ? "server not reached" : error.message;
    ui.model.replaceChildren(new Option(text, ""));
    ui.model.disabled = true;
    ui.device.textContent = "";
    say(text);
  }
  look();
}

// The live view is offered if the server says that it has one.
async function look() {
  try {
    const response = await fetch("props", { headers: headers() });
    ui.inside.hidden = !(response.ok && (await response.json()).viz === true);
  } catch { ui.inside.hidden = true; }
}

function openSettings(first = ui.system) {
  ui.system.value = options.system ?? "";
  for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_tokens"], ["seed", "seed"]]) ui[id].value = options[name] ?? "";
  ui.key.value = kept(sessionStorage, "minfer.key", "");
  ui["settings-error"].hidden = true;
  ui.settings.showModal();
  first.focus();
}

function closeSettings() {
  options = { system: ui.system.value || undefined, temperature: number(ui.temperature), max_tokens: number(ui["max-tokens"]), seed: number(ui.seed) };
  keep(localStorage, "minfer.options", options);
  keep(sessionStorage, "minfer.key", ui.key.value.trim());
  models();
  ui.input.focus();
}

function exported() {
  const text = JSON.stringify({ minfer: 1, model: ui.model.value, system: options.system, messages: read(talk) }, null, 2);
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "conversation.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function imported(file) {
  try {
    const value = JSON.parse(await file.text());
    const messages = read(value.messages);
    if (!messages) throw new Error("there is no conversation in it");
    if (running) throw new Error("an answer is being written");
    talk = messages;
    ui.system.value = typeof value.system === "string" ? value.system : "";
    save();
    show();
    ui.settings.close();
  } catch (error) {
    ui["settings-error"].textContent = `${file.name}: ${error.message}`;
    ui["settings-error"].hidden = false;
  }
}

function theme(wanted) {
  const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

theme(kept(localStorage, "minfer.theme", ""));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(kept(localStorage, "minfer.theme", "")));
ui.theme.addEventListener("click", () => {
  const wanted = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep(localStorage, "minfer.theme", wanted);
  theme(wanted);
});
ui.composer.addEventListener("submit", (event) => { event.preventDefault(); if (running) stop(); else send(); });
ui.input.addEventListener("input", grow);
ui.input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running && !ui.settings.open) stop(); });
ui.new.addEventListener("click", () => { talk = []; save(); show(); ui.context.textContent = ""; ui.input.focus(); });
ui["open-settings"].addEventListener("click", () => openSettings());
ui.settings.addEventListener("close", closeSettings);
ui.export.addEventListener("click", exported);
ui.import.addEventListener("click", () => ui.file.click());
ui.file.addEventListener("change", () => { if (ui.file.files[0]) imported(ui.file.files[0]); ui.file.value = ""; });
show();
grow();
toEnd();
models();
ui.input.focus();
