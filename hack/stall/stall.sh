#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows an MPTCP connection that stops for good: hack/stall/stall.sh [RUNS]. As root, with
# iproute2, nftables, ethtool and Python; docs/kernel-notes.md says what happens. RMEM and
# WMEM are the namespaces' tcp_rmem and tcp_wmem, WRITE the bytes that the application
# writes at a time, FAILURES how often a link fails for 300 ms.
set -euo pipefail
RMEM=${RMEM:-4096 131072 6291456} WMEM=${WMEM:-4096 16384 4194304} WRITE=${WRITE:-100} FAILURES=${FAILURES:-4}
client=stall-c-$$ server=stall-s-$$
count=$(mktemp)

cleanup() {
	[[ -z ${pids:-} ]] || kill "${pids[@]}" 2>/dev/null || true
	wait
	pids=()
	ip netns del "$client" 2>/dev/null || true
	ip netns del "$server" 2>/dev/null || true
}
trap 'cleanup; rm -f "$count"' EXIT

setup() {
	local ns link
	ip netns add "$client" && ip netns add "$server"
	for ns in "$client" "$server"; do
		ip -n "$ns" link set lo up
		ip netns exec "$ns" sysctl -qw net.mptcp.enabled=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
			"net.ipv4.tcp_rmem=$RMEM" "net.ipv4.tcp_wmem=$WMEM" net.ipv4.tcp_congestion_control=reno
		ip -n "$ns" mptcp limits set subflows 2 add_addr_accepted 2
	done
	for link in 1 2; do
		ip link add "v$link" netns "$client" type veth peer name "v$link" netns "$server"
		ip -n "$client" addr add "10.0.$link.1/24" dev "v$link"
		ip -n "$server" addr add "10.0.$link.2/24" dev "v$link"
		for ns in "$client" "$server"; do
			ip netns exec "$ns" ethtool -K "v$link" tso on gso on gro on >/dev/null
			ip -n "$ns" link set "v$link" up
			tc -n "$ns" qdisc add dev "v$link" root tbf rate 100mbit burst 32k latency 50ms
		done
	done
	ip -n "$client" rule add from 10.0.2.1 table 2
	ip -n "$client" route add default via 10.0.2.2 dev v2 table 2
	ip -n "$client" mptcp endpoint add 10.0.2.1 dev v2 subflow
	ip netns exec "$client" nft 'add table inet fails
		add chain inet fails output { type filter hook output priority 0; }
		add chain inet fails input { type filter hook input priority 0; }'
}

fail() {
	ip netns exec "$client" nft "add rule inet fails output oifname v$1 drop; add rule inet fails input iifname v$1 drop"
	sleep 0.3
	ip netns exec "$client" nft 'flush table inet fails'
	sleep 0.5
}

receiver='
import socket, threading, time
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("10.0.1.2", 5001)); listener.listen()
connection, _ = listener.accept()
total = 0
def tell():
    while True: time.sleep(0.5); print(total, flush=True)
threading.Thread(target=tell, daemon=True).start()
while data := connection.recv(1 << 16): total += len(data)
'
sender='
import socket, sys
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect(("10.0.1.2", 5001))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True: connection.sendall(bytes(int(sys.argv[1])))
'

for run in $(seq "${1:-1}"); do
	setup
	ip netns exec "$server" python3 -c "$receiver" >"$count" & pids=($!)
	sleep 0.5
	ip netns exec "$client" python3 -c "$sender" "$WRITE" & pids+=($!)
	sleep 1.5
	for i in $(seq "$FAILURES"); do fail $((i % 2 + 1)); done
	sleep 3
	before=$(tail -1 "$count")
	sleep 2
	after=$(tail -1 "$count")
	if ((before == after)); then
		echo "run $run: stands still after $after bytes"
		ip netns exec "$server" ss -Mnmi state established
		ip netns exec "$server" ss -tnmi state established
	else
		echo "run $run: goes on with $(((after - before) * 8 / 2000000)) Mbit/s after $after bytes"
	fi
	cleanup
done
