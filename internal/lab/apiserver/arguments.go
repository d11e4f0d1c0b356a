// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
)

// ports are the TCP ports of one server.
type ports struct{ server, etcd, peer int }

// choosePorts finds free ports.
func choosePorts(address string) (ports, error) {
	var p ports
	for _, want := range []struct {
		port    *int
		address string
	}{{&p.server, address}, {&p.etcd, "127.0.0.1"}, {&p.peer, "127.0.0.1"}} {
		port, err := freePort(want.address, p)
		if err != nil {
			return ports{}, err
		}
		*want.port = port
	}
	return p, nil
}

// freePort looks below the range of ephemeral ports: a client that connects
// from such a port while the server is down could take the server's own.
func freePort(address string, taken ports) (int, error) {
	const first, last, attempts = 20000, 32000, 100
	for range attempts {
		port := first + rand.IntN(last-first)
		if port == taken.server || port == taken.etcd {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("no free port on %s between %d and %d after %d attempts", address, first, last, attempts)
}

func loopbackURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

func etcdArguments(data string, p ports) []string {
	client, peer := loopbackURL(p.etcd), loopbackURL(p.peer)
	return []string{
		"--data-dir=" + data,
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		// The data need not survive a crash of the machine.
		"--unsafe-no-fsync=true",
	}
}

func etcdHealthy(port int) func(context.Context) error {
	return func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, loopbackURL(port)+"/health")
	}
}

// getOK asks for a page that is answered with 200 when all is well.
func getOK(ctx context.Context, c *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

func serverArguments(o Options, p ports) []string {
	in := func(name string) string { return filepath.Join(o.Dir, name) }
	arguments := []string{
		"--etcd-servers=" + loopbackURL(p.etcd),
		"--bind-address=" + o.Address,
		"--secure-port=" + strconv.Itoa(p.server),
		"--cert-dir=" + in(certificatesDir),
		"--tls-cert-file=" + in(servingCertFile),
		"--tls-private-key-file=" + in(servingKeyFile),
		"--token-auth-file=" + in(tokensFile),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + in(serviceAccountKey),
		"--service-account-signing-key-file=" + in(serviceAccountKey),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--allow-privileged=true",
	}
	if o.Tunnel != "" {
		arguments = append(arguments, "--egress-selector-config-file="+in(egressFile), "--kubelet-preferred-address-types=InternalIP")
	}
	if len(o.Audited) > 0 {
		arguments = append(arguments, "--audit-policy-file="+in(auditPolicyFile), "--audit-log-path="+in(auditFile))
	}
	if o.Advertise != "" {
		return append(arguments, "--advertise-address="+o.Advertise)
	}
	return append(arguments,
		// Nobody reaches this server through the Service "kubernetes"; without
		// these two it would need a default route to find an address for it.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		// No controller makes the service accounts that this plugin asks for.
		"--disable-admission-plugins=ServiceAccount",
	)
}

// serviceAddress is that of the Service "kubernetes": the first of its range.
const serviceAddress = "10.0.0.1"
