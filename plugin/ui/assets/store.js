// SPDX-License-Identifier: Apache-2.0

// What is known of the cluster, and the one stream that keeps it so.

export const store = {
  version: 0,
  head: null,
  nodes: new Map(),
  names: [], // of nodes, sorted
  uses: new Map(), // what NICs carry, by node and path
  unread: new Map(), // why a node's agent could not be asked
  agents: '', // why none could be
  top: null, // the subflows that are looked at
  problems: {}, // why nics or subflows are not known
  live: 'connecting',
};

const listeners = new Set();
let source = null;
let looking = '';

// listen calls back with state, nics, subflows, problem or live.
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(what) {
  for (const listener of listeners) listener(what);
}

export const useKey = (node, path) => node + '\n' + path;

// look opens the stream for what is looked at now: pairs of a query.
export function look(query) {
  const wanted = new URLSearchParams(query).toString();
  if (source && wanted === looking && source.readyState !== EventSource.CLOSED) return;
  const subflowsOf = (text) => new URLSearchParams(text).get('of') + '/' + new URLSearchParams(text).get('pod');
  if (subflowsOf(wanted) !== subflowsOf(looking)) store.top = null;
  looking = wanted;
  store.problems = {};
  if (source) source.close();
  source = new EventSource('api/stream?since=' + store.version + (wanted ? '&' + wanted : ''));
  const on = (name, take) =>
    source.addEventListener(name, (event) => {
      take(JSON.parse(event.data));
      tell(name);
    });
  on('state', takeState);
  on('nics', takeNICs);
  on('subflows', (found) => { store.top = found; delete store.problems.subflows; });
  on('problem', (found) => { store.problems[found.of] = found.error; });
  source.addEventListener('open', () => setLive('live'));
  source.addEventListener('error', (event) => {
    setLive(event.target.readyState === EventSource.CLOSED ? 'ended' : 'reconnecting');
  });
}

// takeFirst takes what came with the page itself: the map need not wait for the stream.
export function takeFirst() {
  const first = document.getElementById('state').textContent;
  if (!first) return;
  takeState(JSON.parse(first));
  tell('state');
}

function setLive(live) {
  if (store.live === live) return;
  store.live = live;
  tell('live');
}

function takeState(found) {
  store.version = found.version;
  if (found.head) store.head = found.head;
  let names = false;
  for (const [name, node] of Object.entries(found.nodes || {})) {
    if (node === null) names = store.nodes.delete(name) || names;
    else {
      names = names || !store.nodes.has(name);
      node.byPath = new Map(node.nics.map((nic) => [nic.name, nic]));
      node.trouble = Boolean(node.problem || node.silent || node.wrong || node.notSpread || node.nics.some((nic) => nic.is !== 'up'));
      store.nodes.set(name, node);
    }
  }
  if (names) store.names = [...store.nodes.keys()].map((name) => [sortKey(name), name]).sort(([a], [b]) => (a < b ? -1 : 1)).map(([, name]) => name);
}

// sortKey puts node10 behind node9. Intl.Collator would, and takes ten times as long to begin.
const sortKey = (name) => name.replace(/\d+/g, (digits) => digits.replace(/^0+(?=\d)/, '').padStart(12, '0'));

function takeNICs(found) {
  for (const node of new Set(found.paths.map((use) => use.node))) store.unread.delete(node);
  for (const use of found.paths) store.uses.set(useKey(use.node, use.path), use);
  store.agents = '';
  for (const problem of found.problems || []) {
    if (problem.object.startsWith('node ')) store.unread.set(problem.object.slice(5), problem.message);
    else store.agents = problem.message;
  }
}

// stateOf is what a NIC is now: what the agent said last is newer than its status.
export function stateOf(node, nic) {
  const use = store.uses.get(useKey(node.name, nic.name));
  if (use && use.now && use.state === 'Down' && nic.is === 'up') return 'noCarrier';
  return nic.is;
}

// carries is what a NIC carries now; undefined where that is not known.
export function carries(node, path) {
  const use = store.uses.get(useKey(node, path));
  return use && use.now ? { ...use.now, capacity: use.capacityBitsPerSecond || 0 } : undefined;
}

export const stateWords = {
  up: 'up', down: 'down', noCarrier: 'no carrier', missing: 'no NIC', unusable: 'not usable',
  unreached: 'peers not reached', partly: 'some peers not reached', away: 'agent away',
};

// sentence tells of a NIC in full.
export function sentence(node, path) {
  const nic = node.byPath.get(path);
  if (!nic) return node.name + ', ' + path + ': not on this path';
  const state = stateOf(node, nic);
  let text = `${node.name}, ${path}: ${nic.interface || 'no NIC'}, ${stateWords[state]}`;
  if (nic.why) text += ': ' + nic.why;
  else if (nic.peersProbed && state !== 'away') text += `, ${nic.peersAlive} of ${nic.peersProbed} peers answer`;
  if (nic.medianRTTMicros && state !== 'away') text += `, RTT ${(nic.medianRTTMicros / 1000).toFixed(2)} ms, loss ${nic.lossPercent || 0} %`;
  return text;
}
