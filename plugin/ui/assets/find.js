// SPDX-License-Identifier: Apache-2.0

// Find a node or a pod by a part of its name.

import { answer, el, nodeLink, podLink, put } from './dom.js';
import { store } from './store.js';

const maxNodes = 8;

export function setUpFind(input, list) {
  let chosen = -1;
  let asked = null;
  let timer = 0;
  // shown is the text that the list answers, which may not be all that is typed by now.
  let shown = '';
  // entered tells that Enter was pressed before there was an answer to what is typed.
  let entered = false;

  const typed = () => input.value.trim().toLowerCase();

  function close() {
    clearTimeout(timer);
    if (asked) asked.abort(); // else its answer would open the list again
    list.hidden = true;
    chosen = -1;
    shown = '';
    entered = false;
    input.setAttribute('aria-expanded', 'false');
    input.removeAttribute('aria-activedescendant');
  }

  function choose(index) {
    const options = [...list.querySelectorAll('[role=option]')];
    if (!options.length) return;
    chosen = (index + options.length) % options.length;
    options.forEach((option, i) => option.setAttribute('aria-selected', String(i === chosen)));
    options[chosen].scrollIntoView({ block: 'nearest' });
    input.setAttribute('aria-activedescendant', options[chosen].id);
  }

  function go(option) {
    location.hash = option.dataset.to;
    input.value = '';
    close();
    document.getElementById('main').focus();
  }

  function option(kind, name, to) {
    const item = el('li', { role: 'option', 'aria-selected': 'false', onmousedown: (event) => { event.preventDefault(); go(item); } },
      el('span', { class: 'chip' }, kind), ' ' + name);
    item.dataset.to = to;
    return item;
  }

  function show(text, nodes, pods, note) {
    const before = list.querySelectorAll('[role=option]')[chosen]?.dataset.to;
    const items = [...nodes.map((name) => option('node', name, nodeLink(name))),
      ...pods.map((pod) => option(pod.vm ? 'VM' : 'pod', pod.namespace + '/' + pod.name, podLink(pod.namespace, pod.name)))];
    items.forEach((item, i) => { item.id = 'found' + i; });
    put(list, items, note || !items.length ? el('li', { class: 'muted' }, note || 'Nothing has this in its name.') : null);
    list.hidden = false;
    shown = text;
    chosen = -1;
    input.removeAttribute('aria-activedescendant');
    input.setAttribute('aria-expanded', 'true');
    const again = items.findIndex((item) => item.dataset.to === before);
    if (again >= 0) choose(again);
    if (entered) enter();
  }

  // enter goes to what is chosen, or the first that has what is typed, once that is known.
  function enter() {
    const options = list.querySelectorAll('[role=option]');
    entered = chosen < 0 && shown !== typed();
    if (entered) find();
    else if (options.length && !list.hidden) go(options[Math.max(0, chosen)]);
  }

  async function find() {
    const text = typed();
    clearTimeout(timer);
    if (asked) asked.abort();
    if (!text) return close();
    const matching = store.names.filter((name) => name.toLowerCase().includes(text));
    const nodes = matching.slice(0, maxNodes);
    asked = new AbortController();
    try {
      const found = await answer('api/find', { text }, asked.signal);
      const more = found.more || 0;
      show(text, nodes, found.pods, more ? `and ${more} more pods` : '');
    } catch (error) {
      if (error.name !== 'AbortError') show(text, nodes, [], 'Pods: ' + error.message);
    }
    return undefined;
  }

  input.addEventListener('input', () => {
    entered = false;
    clearTimeout(timer);
    timer = setTimeout(find, 120);
  });
  input.addEventListener('blur', close);
  input.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown') choose(chosen + 1);
    else if (event.key === 'ArrowUp') choose(chosen < 0 ? -1 : chosen - 1);
    else if (event.key === 'Enter') enter();
    else if (event.key === 'Escape') {
      input.value = '';
      close();
      input.blur();
    } else return;
    event.preventDefault();
  });
}
