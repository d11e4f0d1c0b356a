// SPDX-License-Identifier: Apache-2.0

// What is shown comes from a cluster: it becomes text, never markup.

// el makes an element; a property that begins with "on" is a listener, children that are
// null or false are left out.
export function el(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'class') element.className = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  put(element, ...children);
  return element;
}

// put replaces what is in an element.
export function put(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// text sets a text where it is another one.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// What is not seen at first waits until the browser has shown something: it has little time to
// spare when it was just started, and so have the programs behind the page.
let painted = false;
const painting = new Promise((done) => {
  new PerformanceObserver((list, observer) => {
    if (!list.getEntriesByName('first-contentful-paint').length) return;
    observer.disconnect();
    done();
  }).observe({ type: 'paint', buffered: true });
  // A page that nobody sees paints nothing; one that is seen is painted late on a busy machine.
  const tells = !document.hidden && PerformanceObserver.supportedEntryTypes.includes('paint');
  setTimeout(done, tells ? 10000 : 1000);
});
painting.then(() => { painted = true; });

export function afterPainting(call) {
  if (painted) call();
  else painting.then(call);
}

export function isPainted() {
  return painted;
}

// rate has three digits or so, as `kubectl braid top` writes them.
export function rate(bits) {
  if (!bits) return '–';
  const units = ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'];
  let unit = 0;
  while (bits >= 999.5 && unit < units.length - 1) {
    bits /= 1000;
    unit++;
  }
  return (bits < 99.95 && unit > 0 ? bits.toFixed(1) : bits.toFixed(0)) + ' ' + units[unit];
}

// share is a part of a capacity in percent; empty where that is not known.
export function share(bits, capacity) {
  return capacity ? Math.round((100 * bits) / capacity) + ' %' : '';
}

export function microseconds(value) {
  if (!value) return '–';
  return value < 1000 ? value + ' µs' : (value / 1000).toFixed(value < 100000 ? 1 : 0) + ' ms';
}

export function clock(time) {
  const date = new Date(time);
  const today = new Date().toDateString() === date.toDateString();
  const hours = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
  return today ? hours : date.toLocaleDateString() + ' ' + hours;
}

export function plural(count, word) {
  return count + ' ' + word + (count === 1 ? '' : 's');
}

export const nodeLink = (node) => '#/node/' + encodeURIComponent(node);
export const podLink = (namespace, pod) => '#/pod/' + encodeURIComponent(namespace) + '/' + encodeURIComponent(pod);

// answer gets JSON; what goes wrong is an Error with the server's own words.
export async function answer(path, query, signal) {
  const response = await fetch(path + '?' + new URLSearchParams(query), { signal });
  const found = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}
