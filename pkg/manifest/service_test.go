package manifest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func TestServices(t *testing.T) {
	ports := []manifest.Port{{Name: "admin", Port: 1}, {Name: "http", Port: 2}, {Name: "metrics", Dynamic: true}}
	byHTTP, byTCP := &manifest.Health{HTTP: &manifest.HTTPCheck{Port: "http"}}, &manifest.Health{TCP: &manifest.TCPCheck{Port: "metrics"}}
	for name, c := range map[string]struct {
		m    manifest.Manifest
		want []manifest.NamedService
	}{
		"no ports":          {manifest.Manifest{ID: "web"}, []manifest.NamedService{{Name: "web"}}},
		"the first":         {manifest.Manifest{ID: "web", Ports: ports}, []manifest.NamedService{{"web", "admin"}, {"web-http", "http"}, {"web-metrics", "metrics"}}},
		"asked over HTTP":   {manifest.Manifest{ID: "web", Ports: ports, Health: byHTTP}, []manifest.NamedService{{"web", "http"}, {"web-admin", "admin"}, {"web-metrics", "metrics"}}},
		"asked over TCP":    {manifest.Manifest{ID: "web", Ports: ports, Health: byTCP}, []manifest.NamedService{{"web", "metrics"}, {"web-admin", "admin"}, {"web-http", "http"}}},
		"asked by a script": {manifest.Manifest{ID: "web", Ports: ports, Health: &manifest.Health{Script: &manifest.ScriptCheck{}}}, []manifest.NamedService{{"web", "admin"}, {"web-http", "http"}, {"web-metrics", "metrics"}}},
		"chosen": {
			manifest.Manifest{ID: "web", Ports: ports[:2], Health: byHTTP, Service: &manifest.Service{Name: "shop", Port: "admin"}},
			[]manifest.NamedService{{"shop", "admin"}, {"shop-http", "http"}},
		},
	} {
		if diff := cmp.Diff(c.want, c.m.Services()); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", name, diff)
		}
	}
}
