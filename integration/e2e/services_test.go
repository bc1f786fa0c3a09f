package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
)

// services: every named port of a pod is found in Consul, by DNS and over HTTP, under the names in the pod's manifest.
// The queries come from docs/manifest.md. A pod that has stopped is not found.
func services(e *env) {
	ports, err := devserver.FreePorts(e.t.Context(), 1)
	if err != nil {
		e.t.Fatal(err)
	}
	e.startConsul(fmt.Sprintf(`{"ports": {"dns": %d}}`, ports[0]))
	e.preparer(1)
	e.farm("f1", "")
	spec := strings.Replace(cluster.HelloSpec(e.hello(1, nil)), "  health:",
		"  - {name: admin, dynamic: true}\n"+
			"  service: {name: shop, port: http, tags: [v1], meta: {team: front}}\n  health:", 1)
	e.rcctl(spec, "apply", "-f", "-", "--wait", "--timeout", limit.String())
	var admin int
	for _, rec := range e.placements(e.rcID("hello")) {
		admin = rec.Value.Ports["admin"]
	}

	byDNS, health := e.documentedLookups()
	want := []int{8080, admin}
	if len(byDNS) != len(want) {
		e.t.Fatalf("docs/manifest.md asks %q", byDNS)
	}
	for i, name := range byDNS {
		e.within(limit, func() error { return e.asks(ports[0], name, want[i]) })
	}
	e.within(limit, func() error { return e.finds(health, 8080, "shop") })
	e.within(limit, func() error {
		return e.finds(strings.Replace(health, "/shop", "/shop-admin", 1), admin, "shop-admin")
	})

	e.rcctl("", "rc", "scale", "hello", "0", "--wait", "--timeout", limit.String())
	for _, name := range byDNS {
		e.within(limit, func() error { return e.asks(ports[0], name, 0) })
	}
}

// documentedLookups returns the names in digs of docs/manifest.md, and the URL of the health query.
func (e *env) documentedLookups() (byDNS []string, health string) {
	e.t.Helper()
	data, err := os.ReadFile(filepath.Join(e.root, "docs", "manifest.md"))
	if err != nil {
		e.t.Fatal(err)
	}
	for _, line := range regexp.MustCompile(
		`(?m)^\$ dig \+short @127\.0\.0\.1 -p 8600 (\S+) SRV$`).FindAllStringSubmatch(string(data), -1) {
		byDNS = append(byDNS, line[1])
	}
	found := regexp.MustCompile(`127\.0\.0\.1:8500(/v1/health/service/[^']*)`).FindStringSubmatch(string(data))
	if found == nil {
		e.t.Fatal("docs/manifest.md asks no health question")
	}
	return byDNS, "http://" + e.consul.Addr + found[1]
}

// asks: Consul's DNS must have one service at the port, or none if port is zero.
func (e *env) asks(dns int, name string, port int) error {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", dns))
	}}
	_, found, err := resolver.LookupSRV(e.t.Context(), "", "", name+".")
	var unknown *net.DNSError
	if err != nil && (!errors.As(err, &unknown) || !unknown.IsNotFound) {
		return fmt.Errorf("look %s up: %w", name, err)
	}
	if none := len(found) == 0; none != (port == 0) || !none && (len(found) > 1 || int(found[0].Port) != port) {
		return fmt.Errorf("%s is found %d times, %+v, want port %d", name, len(found), found, port)
	}
	return nil
}

// finds: a health query must have one instance, at the port and with the manifest's tags and metadata.
func (e *env) finds(url string, port int, name string) error {
	page, err := cluster.Get(e.t.Context(), url)
	if err != nil {
		return err
	}
	var found []struct {
		Service struct {
			Service, Address string
			Port             int
			Tags             []string
			Meta             map[string]string
		}
	}
	if err := json.Unmarshal([]byte(page), &found); err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%s: %d instances", url, len(found))
	}
	s := found[0].Service
	if s.Service != name || s.Port != port || s.Address != e.address(1) || !slices.Equal(s.Tags, []string{"v1"}) ||
		s.Meta["team"] != "front" || s.Meta["rcfarm_role"] != "main" {
		return fmt.Errorf("%s: %+v, want %s at %s:%d", url, s, name, e.address(1), port)
	}
	return nil
}
