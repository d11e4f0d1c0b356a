#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows downloads that crawl where there was data in the SYN (TCP Fast Open) and several subflows carry what follows:
# hack/stall/fastopen.sh [RUNS]. As root, with iproute2 and Python; docs/kernel-notes.md says what happens. FASTOPEN=0
# sends no data in SYNs, LINKS is how many subflows there are, BYTES how much is fetched.
set -euo pipefail
FASTOPEN=${FASTOPEN:-1} LINKS=${LINKS:-3} BYTES=${BYTES:-20000000}
client=fastopen-c-$$ server=fastopen-s-$$

cleanup() {
	[[ -z ${pid:-} ]] || kill "$pid" 2>/dev/null || true
	wait
	pid=
	ip netns del "$client" 2>/dev/null || true
	ip netns del "$server" 2>/dev/null || true
}
trap cleanup EXIT

setup() {
	local ns link
	ip netns add "$client" && ip netns add "$server"
	for ns in "$client" "$server"; do
		ip -n "$ns" link set lo up
		ip netns exec "$ns" sysctl -qw net.mptcp.enabled=1 net.ipv4.tcp_fastopen=3 \
			net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
		ip -n "$ns" mptcp limits set subflows $((LINKS - 1))
	done
	for link in $(seq "$LINKS"); do
		ip link add "v$link" netns "$client" type veth peer name "v$link" netns "$server"
		ip -n "$client" addr add "10.0.$link.1/24" dev "v$link"
		ip -n "$server" addr add "10.0.$link.2/24" dev "v$link"
		for ns in "$client" "$server"; do
			ip -n "$ns" link set "v$link" up
			tc -n "$ns" qdisc add dev "v$link" root tbf rate 100mbit burst 32k latency 20ms
		done
		ip -n "$client" rule add from "10.0.$link.1" table "$link"
		ip -n "$client" route add default via "10.0.$link.2" dev "v$link" table "$link"
		((link == 1)) || ip -n "$client" mptcp endpoint add "10.0.$link.1" dev "v$link" subflow
	done
}

serve='
import socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("10.0.1.2", 5001))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
listener.listen()
while True:
    connection, _ = listener.accept()
    connection.recv(1)
    try: connection.sendall(bytes(int(sys.argv[1])))
    except OSError: pass
    connection.close()
'
# The first connection gets the cookie.
fetch='
import socket, sys, time
fast, size = int(sys.argv[1]), int(sys.argv[2])
for run in range(2):
    began = time.time()
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    if fast: connection.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
    connection.connect(("10.0.1.2", 5001))
    connection.sendall(b"x")
    got = 0
    while got < size and time.time() < began + 10: got += len(connection.recv(1 << 20))
    connection.close()
print("%d bytes in %.2f s" % (got, time.time() - began))
'

# counted NAMESPACE NAME is one of the kernel's counters.
counted() { ip netns exec "$1" nstat -asz "$2" | awk -v name="$2" '$1 == name { print $2 }'; }

for run in $(seq "${1:-1}"); do
	setup
	ip netns exec "$server" python3 -c "$serve" "$BYTES" & pid=$!
	sleep 0.5
	echo "run $run: $(ip netns exec "$client" python3 -c "$fetch" "$FASTOPEN" "$BYTES"), $(counted "$server" TcpExtTCPFastOpenPassive) with data in the SYN," \
		"dropped $(counted "$client" MPTcpExtNoDSSInWindow) times, sent again by MPTCP's timer $(counted "$server" MPTcpExtMPTCPRetrans) times"
	cleanup
done
