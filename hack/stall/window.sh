#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows data that a receiver acknowledges and then drops, as it is beyond the connection's window:
# hack/stall/window.sh [RUNS]. As root, with iproute2, nftables and Python;
# docs/kernel-notes.md says what happens. RMEM is the namespaces' tcp_rmem, WRITE the bytes
# that the application writes at a time, LOST how many segments come to one that is lost.
set -euo pipefail
RMEM=${RMEM:-4096 262144 262144} WRITE=${WRITE:-65536} LOST=${LOST:-200} LINKS=3
client=window-c-$$ server=window-s-$$

cleanup() {
	[[ -z ${pids:-} ]] || kill "${pids[@]}" 2>/dev/null || true
	wait
	pids=()
	ip netns del "$client" 2>/dev/null || true
	ip netns del "$server" 2>/dev/null || true
}
trap cleanup EXIT

setup() {
	local ns link
	ip netns add "$client" && ip netns add "$server"
	for ns in "$client" "$server"; do
		ip -n "$ns" link set lo up
		ip netns exec "$ns" sysctl -qw net.mptcp.enabled=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
			"net.ipv4.tcp_rmem=$RMEM" net.ipv4.tcp_congestion_control=reno
		ip -n "$ns" mptcp limits set subflows $((LINKS - 1))
	done
	for link in $(seq "$LINKS"); do
		ip link add "v$link" netns "$client" type veth peer name "v$link" netns "$server"
		ip -n "$client" addr add "10.0.$link.1/24" dev "v$link"
		ip -n "$server" addr add "10.0.$link.2/24" dev "v$link"
		for ns in "$client" "$server"; do
			ip -n "$ns" link set "v$link" up
			tc -n "$ns" qdisc add dev "v$link" root tbf rate 30mbit burst 32k latency 16ms
		done
		ip -n "$client" rule add from "10.0.$link.1" table "$link"
		ip -n "$client" route add default via "10.0.$link.2" dev "v$link" table "$link"
		((link == 1)) || ip -n "$client" mptcp endpoint add "10.0.$link.1" dev "v$link" subflow
	done
	ip netns exec "$server" nft "add table inet loses
		add chain inet loses input { type filter hook input priority 0; }
		add rule inet loses input tcp dport 5001 numgen random mod $LOST 0 drop"
}

receiver='
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("10.0.1.2", 5001)); listener.listen()
connection, _ = listener.accept()
while connection.recv(1 << 16): pass
'
sender='
import socket, sys, time
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect(("10.0.1.2", 5001))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
end = time.time() + 2
while time.time() < end: connection.sendall(bytes(int(sys.argv[1])))
'

# counted NAMESPACE NAME is one of the kernel's counters.
counted() { ip netns exec "$1" nstat -asz "$2" | awk -v name="$2" '$1 == name { print $2 }'; }

for run in $(seq "${1:-1}"); do
	setup
	ip netns exec "$server" python3 -c "$receiver" & pids=($!)
	sleep 0.5
	ip netns exec "$client" python3 -c "$sender" "$WRITE" & pids+=($!)
	sleep 2.5
	echo "run $run: dropped $(counted "$server" MPTcpExtNoDSSInWindow) times, sent again by MPTCP's timer $(counted "$client" MPTcpExtMPTCPRetrans) times"
	cleanup
done
