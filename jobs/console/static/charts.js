"use strict";

// Draws the lines of each <figure data-chart> with uPlot. The numbers are also in a table below each figure.

const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

function formatTick(seconds) {
  const text = new Date(seconds * 1000).toISOString();
  return text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

function formatTime(seconds) {
  return seconds === null ? "-" : `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function draw(figure) {
  const { unit, times, lines } = JSON.parse(figure.dataset.chart);
  const line = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--dim"), grid: line, ticks: line };
  const size = () => ({ width: figure.clientWidth, height: 240 });
  const series = Object.keys(lines).map((name, number) => ({
    label: name,
    stroke: colour(`--c${number}`),
    width: 2,
    value: (_, value) => (value === null ? "-" : `${exact.format(value)} ${unit}`),
  }));
  const options = {
    ...size(),
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, label: "time (UTC)", values: (_, ticks) => ticks.map(formatTick) },
      { ...axis, label: unit, size: 64, values: (_, ticks) => ticks.map((tick) => short.format(tick)) },
    ],
    series: [{ label: "time", value: (_, seconds) => formatTime(seconds) }, ...series],
  };
  figure.plot = new uPlot(options, [times, ...Object.values(lines)], figure);
  new ResizeObserver(() => figure.plot.setSize(size())).observe(figure);
}

document.querySelectorAll("figure[data-chart]").forEach(draw);
