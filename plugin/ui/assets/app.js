// SPDX-License-Identifier: Apache-2.0

import { ClusterPage } from './cluster.js';
import { afterPainting, text } from './dom.js';
import { listen, look, store, takeFirst } from './store.js';

const byId = (id) => document.getElementById(id);
const main = byId('main');
let page = null;

// What the map does not need comes after it: a browser that was just started has much to do.
let rest = null;
function later() {
  rest ??= loadRest();
  return rest;
}

async function loadRest() {
  // The token is not for the history of the browser, which has its cookie now.
  if (location.search) history.replaceState(null, '', location.pathname + location.hash);
  const style = document.createElement('link');
  [style.rel, style.href] = ['stylesheet', 'vendor/uPlot.min.css'];
  document.querySelector('style').before(style); // ours counts more
  const [find, node, pod] = await Promise.all([import('./find.js'), import('./node.js'), import('./pod.js')]);
  find.setUpFind(byId('find'), byId('found'));
  if (byId('find').value) byId('find').dispatchEvent(new Event('input')); // somebody was quicker
  return { NodePage: node.NodePage, PodPage: pod.PodPage };
}

let routes = 0;
async function route() {
  const parts = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  const isNode = parts[0] === 'node' && parts[1];
  const isPod = parts[0] === 'pod' && parts[2];
  const mine = ++routes;
  const more = isNode || isPod ? await later() : null;
  if (mine !== routes) return; // somebody went elsewhere meanwhile
  if (page) page.end();
  main.replaceChildren();
  if (isNode) page = new more.NodePage(main, parts[1]);
  else if (isPod) page = new more.PodPage(main, parts[1], parts[2]);
  else page = new ClusterPage(main);
  window.scrollTo(0, 0);
}

function showHead() {
  const head = store.head;
  if (!head) return;
  text(byId('context'), head.context || '');
  const count = (kind) => head.reports.filter((one) => one.type === kind).length;
  const problems = count('Problem');
  const traffic = count('Traffic');
  const nics = count('NIC');
  let words = (head.status.leftOut || []).length ? 'What you may read is fine' : 'Everything is fine';
  let kind = 'ok';
  if (problems || !head.status.fine) [words, kind] = [`${problems}${head.older ? ' or more' : ''} ${problems === 1 ? 'problem' : 'problems'}`, 'bad'];
  else if (nics) [words, kind] = [`${nics} ${nics === 1 ? 'NIC is' : 'NICs are'} not as they should be`.replace('NIC is not as they', 'NIC is not as it'), 'warn'];
  else if (traffic) [words, kind] = ['Everything is in place, but not all traffic is spread', 'warn'];
  text(byId('verdict'), words);
  byId('verdict').className = 'verdict ' + kind;
}

function showNotice() {
  const notice = byId('notice');
  let words = '';
  if (store.live === 'ended') words = 'kubectl braid ui has ended, or wants its whole address again: what you see is old.';
  else if (store.live === 'reconnecting') words = 'kubectl braid ui does not answer: what you see is old.';
  else if (store.head && store.head.stale) words = 'The API server does not answer: what you see may be old. ' + store.head.stale;
  notice.hidden = !words;
  text(notice, words);
  text(byId('live'), store.live === 'live' && !words ? 'live' : '');
}

listen((what) => {
  if (what === 'state') showHead();
  if (what === 'state' || what === 'live') showNotice();
  if (page) page.update(what);
});

const themes = { auto: ['◐', 'as the system has them'], light: ['☀', 'light'], dark: ['☾', 'dark'] };
let theme = 'auto';
function nextTheme() {
  const names = Object.keys(themes);
  theme = names[(names.indexOf(theme) + 1) % names.length];
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  text(byId('theme'), themes[theme][0]);
  byId('theme').setAttribute('aria-label', 'Colours: ' + themes[theme][1]);
  if (page) page.update('theme');
}
byId('theme').addEventListener('click', nextTheme);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => page && page.update('theme'));

byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea')) return;
  if (event.key === '/') {
    event.preventDefault();
    byId('find').focus();
  } else if (event.key === 't') nextTheme();
  else if (event.key === 'Escape' && location.hash.length > 2) location.hash = '#/';
});
addEventListener('hashchange', route);
// For a page that nobody has seen for a minute no agent is asked.
let unseen = 0;
document.addEventListener('visibilitychange', () => {
  clearTimeout(unseen);
  if (document.hidden) unseen = setTimeout(() => look([]), 60000);
  else if (page) page.look();
});
takeFirst();
route();
afterPainting(later);
