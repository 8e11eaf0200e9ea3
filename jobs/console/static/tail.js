"use strict";

// Follows a topic: asks every second for the page that the link "Newer" leads to, and puts its rows on top.
// Without a script, the link does the same.

const MOST_ROWS = 200;
const LONGEST_MS = 30_000;
const state = document.createElement("p");
const button = document.createElement("button");
button.type = "button";
document.querySelector(".actions").append(button);
document.querySelector(".actions").after(state);
let isRunning = true;
let isLooking = false;

function show(text) {
  button.textContent = isRunning ? "Stop" : "Continue";
  state.className = isRunning ? "dim" : "notice";
  state.textContent = text;
}

const findLink = (page) => page.querySelector('.actions a[href^="/tail?"]');
const findTable = (page) => [...page.querySelectorAll("main section")].pop();

async function look() {
  const answer = await fetch(findLink(document).href, { signal: AbortSignal.timeout(LONGEST_MS) });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (findLink(page) === null) throw new Error((page.querySelector(".notice") ?? page.querySelector("h1")).textContent);
  findLink(document).href = findLink(page).getAttribute("href");
  const rows = findTable(page).querySelectorAll("tbody tr");
  const body = findTable(document).querySelector("tbody");
  if (body) body.prepend(...rows);
  else if (rows.length) findTable(document).replaceWith(findTable(page));
  while (body && body.rows.length > MOST_ROWS) body.lastElementChild.remove();
  const passed = [...page.querySelectorAll("main .notice")].map((notice) => notice.textContent).join(" ");
  if (isRunning) show(`Follows the topic. The newest ${MOST_ROWS} messages stay here. ${passed}`);
}

async function tick() {
  if (!isRunning || isLooking || document.hidden) return;
  isLooking = true;
  try {
    await look();
  } catch (error) {
    isRunning = false;
    show(`Stopped: ${error.message}`);
  } finally {
    isLooking = false;
  }
}

button.addEventListener("click", () => {
  isRunning = !isRunning;
  show(isRunning ? "Follows the topic." : "Stopped.");
});
setInterval(tick, 1000);
show("Follows the topic.");
