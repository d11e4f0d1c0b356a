// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Names of files and directories in a server's directory.
const (
	dataDir           = "etcd"
	certificatesDir   = "certificates"
	tokensFile        = "tokens.csv"
	servingCertFile   = "serving.crt"
	servingKeyFile    = "serving.key"
	serviceAccountKey = "service-account.key"
)

// writeCredentials writes what the server authenticates itself and others by,
// and returns the configuration of a cluster admin.
func writeCredentials(o Options, port int) (*rest.Config, error) {
	addresses := []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(serviceAddress)}
	if o.Advertise != "" {
		addresses = append(addresses, net.ParseIP(o.Advertise))
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(o.Address, addresses, nil)
	if err != nil {
		return nil, fmt.Errorf("making the serving certificate: %w", err)
	}
	signingKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, fmt.Errorf("making the key of service accounts: %w", err)
	}
	token := rand.Text()
	files := map[string][]byte{
		servingCertFile:   cert,
		servingKeyFile:    key,
		serviceAccountKey: signingKey,
		tokensFile:        []byte(token + ",admin,admin,system:masters\n"),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(o.Dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing credentials: %w", err)
		}
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(o.Address, strconv.Itoa(port)),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: cert},
		// Nobody else uses this server: clients need not hold back.
		QPS:   1000,
		Burst: 2000,
	}, nil
}
