// SPDX-License-Identifier: Apache-2.0

// Find a node or a pod by a part of its name.

import { answer, el, nodeLink, podLink, put } from './dom.js';
import { store } from './store.js';

const maxNodes = 8;

export function setUpFind(input, list) {
  let chosen = -1;
  let asked = null;
  let timer = 0;

  function close() {
    list.hidden = true;
    chosen = -1;
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

  function show(nodes, pods, note) {
    const items = [...nodes.map((name) => option('node', name, nodeLink(name))),
      ...pods.map((pod) => option(pod.vm ? 'VM' : 'pod', pod.namespace + '/' + pod.name, podLink(pod.namespace, pod.name)))];
    items.forEach((item, i) => { item.id = 'found' + i; });
    put(list, items, note || !items.length ? el('li', { class: 'muted' }, note || 'Nothing has this in its name.') : null);
    list.hidden = false;
    chosen = -1;
    input.setAttribute('aria-expanded', 'true');
  }

  async function find() {
    const text = input.value.trim().toLowerCase();
    if (asked) asked.abort();
    if (!text) return close();
    const matching = store.names.filter((name) => name.toLowerCase().includes(text));
    const nodes = matching.slice(0, maxNodes);
    asked = new AbortController();
    try {
      const found = await answer('api/find', { text }, asked.signal);
      const more = found.more || 0;
      show(nodes, found.pods, more ? `and ${more} more pods` : '');
    } catch (error) {
      if (error.name !== 'AbortError') show(nodes, [], 'Pods: ' + error.message);
    }
    return undefined;
  }

  input.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(find, 120);
  });
  input.addEventListener('blur', close);
  input.addEventListener('keydown', (event) => {
    const options = list.querySelectorAll('[role=option]');
    if (event.key === 'ArrowDown') choose(chosen + 1);
    else if (event.key === 'ArrowUp') choose(chosen < 0 ? -1 : chosen - 1);
    else if (event.key === 'Enter' && options.length && !list.hidden) go(options[Math.max(0, chosen)]);
    else if (event.key === 'Escape') {
      input.value = '';
      close();
      input.blur();
    } else return;
    event.preventDefault();
  });
}
