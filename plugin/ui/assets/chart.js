// SPDX-License-Identifier: Apache-2.0

// Rates over time, for as long as a page looks at them. Nothing of it is kept elsewhere.

import { el, put, rate } from './dom.js';
import uPlot from './vendor/uPlot.js';

const kept = 300; // readings: ten minutes of them

// A path that is named as a colour has it.
const named = {
  blue: '#3b82f6', green: '#22a565', red: '#e5484d', orange: '#f08c2e', yellow: '#c9a400', purple: '#8e5ce6', violet: '#8e5ce6',
  pink: '#d6529a', magenta: '#d6529a', cyan: '#14a3b8', teal: '#14a3b8', white: '#8a93a0', black: '#8a93a0', grey: '#8a93a0', gray: '#8a93a0',
};
const given = new Map();

export function pathColour(path) {
  if (!path) return '#8a93a0';
  if (named[path]) return named[path];
  if (!given.has(path)) {
    const rest = ['blue', 'orange', 'green', 'purple', 'cyan', 'pink', 'yellow', 'red'].map((name) => named[name]);
    given.set(path, rest[given.size % rest.length]);
  }
  return given.get(path);
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

// History keeps values by their keys, one of each for every time.
export class History {
  constructor() {
    this.times = [];
    this.lines = new Map();
  }

  add(time, values) {
    for (const key of values.keys()) {
      if (!this.lines.has(key)) this.lines.set(key, this.times.map(() => null));
    }
    this.times.push(time);
    for (const [key, line] of this.lines) line.push(values.has(key) ? values.get(key) : null);
    if (this.times.length > kept) {
      this.times.shift();
      for (const [key, line] of this.lines) {
        line.shift();
        if (line.every((value) => value === null)) this.lines.delete(key);
      }
    }
  }
}

// Chart draws lines: [{key, label, colour, dashed}].
export class Chart {
  constructor(label, height) {
    this.height = height;
    this.label = label;
    this.place = el('div', { class: 'plot' });
    this.legend = el('div', { class: 'lines' });
    this.element = el('figure', { role: 'group', 'aria-label': label }, this.place, this.legend);
    this.observer = new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.place.clientWidth, height: this.height }));
    this.observer.observe(this.place);
  }

  end() {
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }

  draw(history, lines) {
    const scheme = colour('text');
    const key = scheme + JSON.stringify(lines.map((line) => [line.key, line.label, line.colour]));
    const data = [history.times, ...lines.map((line) => history.lines.get(line.key) || history.times.map(() => null))];
    if (key !== this.key) {
      this.key = key;
      this.begin(lines, data);
    } else {
      this.plot.setData(data);
    }
    this.tellLast(lines, data);
  }

  begin(lines, data) {
    if (this.plot) this.plot.destroy();
    const axis = { stroke: colour('muted'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif' };
    this.plot = new uPlot({
      width: this.place.clientWidth || 600, height: this.height, legend: { show: false }, cursor: { y: false, drag: { setScale: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1000, high * 1.05)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString([], { hour12: false })), space: 90, size: 30 },
        { ...axis, size: 86, values: (_, ticks) => ticks.map((tick) => (tick ? rate(tick) : '0')) }],
      series: [{}, ...lines.map((line) => ({
        label: line.label, stroke: line.colour, width: line.dashed ? 1 : 2, dash: line.dashed ? [4, 4] : undefined, points: { show: false },
        fill: line.filled ? line.colour + '22' : undefined,
      }))],
    }, data, this.place);
  }

  // tellLast has the lines' names with what they are now.
  tellLast(lines, data) {
    put(this.legend, lines.map((line, i) => {
      const last = data[i + 1].at(-1);
      const mark = el('i', {});
      mark.style.background = line.colour;
      return el('span', {}, mark, line.label + ' ', el('b', {}, last === null || last === undefined ? '–' : rate(last)));
    }));
  }
}

// spark draws a small line into a canvas.
export function spark(canvas, values, stroke, most) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [110, 22];
  if (canvas.width !== width * ratio) {
    canvas.width = width * ratio;
    canvas.height = height * ratio;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.strokeStyle = stroke;
  context.lineWidth = 1.5;
  context.beginPath();
  const shown = values.slice(-60);
  let begun = false;
  shown.forEach((value, i) => {
    if (value === null) { begun = false; return; }
    const x = width - (shown.length - 1 - i) * (width / 59) - 1;
    const y = height - 2 - (most ? (value / most) * (height - 4) : 0);
    if (begun) context.lineTo(x, y);
    else context.moveTo(x, y);
    begun = true;
  });
  context.stroke();
}
