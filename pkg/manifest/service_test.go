package manifest_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func TestDrainFor(t *testing.T) {
	ports := []manifest.Port{{Name: "http", Port: 1}}
	none, minute := field.Duration(0), field.Duration(time.Minute)
	for name, c := range map[string]struct {
		m    manifest.Manifest
		want time.Duration
	}{
		"no ports":   {manifest.Manifest{Service: &manifest.Service{Drain: &minute}}, 0},
		"no service": {manifest.Manifest{Ports: ports}, time.Second},
		"not said":   {manifest.Manifest{Ports: ports, Service: &manifest.Service{}}, time.Second},
		"none":       {manifest.Manifest{Ports: ports, Service: &manifest.Service{Drain: &none}}, 0},
		"said":       {manifest.Manifest{Ports: ports, Service: &manifest.Service{Drain: &minute}}, time.Minute},
	} {
		if got := c.m.DrainFor(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestRunsOnce(t *testing.T) {
	launchables := func(policies ...manifest.RestartPolicy) manifest.Manifest {
		var m manifest.Manifest
		for _, policy := range policies {
			m.Launchables = append(m.Launchables, manifest.Launchable{Restart: &manifest.Restart{Policy: policy}})
		}
		return m
	}
	for _, c := range []struct {
		m    manifest.Manifest
		want bool
	}{
		{launchables(), false},
		{launchables(manifest.RestartNever), true},
		{launchables(manifest.RestartNever, manifest.RestartNever), true},
		{launchables(manifest.RestartNever, ""), false},
		{launchables(manifest.RestartOnFailure), false},
		{manifest.Manifest{Launchables: make([]manifest.Launchable, 1)}, false},
	} {
		if got := c.m.RunsOnce(); got != c.want {
			t.Errorf("%+v: %v", c.m.Launchables, got)
		}
	}
}

func TestServices(t *testing.T) {
	ports := []manifest.Port{{Name: "admin", Port: 1}, {Name: "http", Port: 2}, {Name: "metrics", Dynamic: true}}
	byHTTP, byTCP := &manifest.Health{HTTP: &manifest.HTTPCheck{Port: "http"}},
		&manifest.Health{TCP: &manifest.TCPCheck{Port: "metrics"}}
	for name, c := range map[string]struct {
		m    manifest.Manifest
		want []manifest.NamedService
	}{
		"no ports": {manifest.Manifest{ID: "web"}, []manifest.NamedService{{Name: "web"}}},
		"the first": {
			manifest.Manifest{ID: "web", Ports: ports},
			[]manifest.NamedService{{"web", "admin"}, {"web-http", "http"}, {"web-metrics", "metrics"}},
		},
		"asked over HTTP": {
			manifest.Manifest{ID: "web", Ports: ports, Health: byHTTP},
			[]manifest.NamedService{{"web", "http"}, {"web-admin", "admin"}, {"web-metrics", "metrics"}},
		},
		"asked over TCP": {
			manifest.Manifest{ID: "web", Ports: ports, Health: byTCP},
			[]manifest.NamedService{{"web", "metrics"}, {"web-admin", "admin"}, {"web-http", "http"}},
		},
		"asked by a script": {manifest.Manifest{
			ID: "web", Ports: ports,
			Health: &manifest.Health{Script: &manifest.ScriptCheck{}},
		}, []manifest.NamedService{
			{"web", "admin"},
			{"web-http", "http"},
			{"web-metrics", "metrics"},
		}},
		"chosen": {
			manifest.Manifest{
				ID: "web", Ports: ports[:2], Health: byHTTP,
				Service: &manifest.Service{Name: "shop", Port: "admin"},
			},
			[]manifest.NamedService{{"shop", "admin"}, {"shop-http", "http"}},
		},
	} {
		if diff := cmp.Diff(c.want, c.m.Services()); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", name, diff)
		}
	}
}
