package manifest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func TestValidate(t *testing.T) {
	const (
		count   = "1 to 16 entries"
		name    = "1 to 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
		url     = "file:///absolute/path or https://host/path"
		digest  = "64 lower-case hex digits (the output of sha256sum)"
		env     = "a name of letters, digits and '_' that does not start with a digit"
		path    = "a path that starts with '/', without spaces, '#' or '..' segments"
		unique  = "a value that no other entry has"
		taken   = `a name other than "consul" that does not start with "rcfarm-": those are taken in Consul`
		tag     = "1 to 255 visible ASCII characters"
		metaKey = `1 to 128 letters, digits, '-' and '_', not starting with "consul-" or "rcfarm_"`
		after   = `a length of time from "10s" to "24h0m0s", and at least success_threshold times interval and once timeout, which is `
		text    = "at most 4096 bytes without a zero byte"
		labels  = "labels in Kubernetes' syntax: an optional DNS prefix and '/', then up to 63 letters, digits, '-', " +
			"'_' and '.', starting and ending with a letter or digit"
	)
	seconds := func(n int) *field.Duration { d := field.Duration(time.Duration(n) * time.Second); return &d }
	for _, tt := range []struct {
		name   string
		change func(*manifest.Manifest)
		want   string // one line for each mistake; empty: the manifest is valid
	}{
		{"valid", func(*manifest.Manifest) {}, ""},
		{"version", func(m *manifest.Manifest) { m.Version = 2 }, "version: 2 is not valid; allowed: 1"},
		{"no id", func(m *manifest.Manifest) { m.ID = "" }, "id: missing; allowed: " + name},
		{"id", func(m *manifest.Manifest) { m.ID = "Web" }, `id: "Web" is not valid; allowed: ` + name},
		{
			"id of Consul", func(m *manifest.Manifest) { m.ID = "consul" },
			`id: "consul" is not valid; allowed: ` + taken,
		},
		{
			"id of a daemon", func(m *manifest.Manifest) { m.ID = "rcfarm-x" },
			`id: "rcfarm-x" is not valid; allowed: ` + taken,
		},
		{"id like one of a daemon", func(m *manifest.Manifest) { m.ID = "rcfarm" }, ""},
		{"a service", func(m *manifest.Manifest) {
			m.Service = &manifest.Service{
				Name: "shop", Port: "http", Tags: []string{"a", "b=c"},
				Meta: map[string]string{"team_1": "x y"},
			}
		}, ""},
		{"no drain", func(m *manifest.Manifest) { m.Service = &manifest.Service{Drain: new(field.Duration)} }, ""},
		{"long drain", func(m *manifest.Manifest) {
			d := field.Duration(manifest.MaxDrain + 1)
			m.Service = &manifest.Service{Drain: &d}
		}, `service.drain: "10m0.000000001s" is not valid; allowed: a length of time, at most "10m0s"; 0s: none`},
		{
			"service name", func(m *manifest.Manifest) { m.Service = &manifest.Service{Name: "Shop"} },
			`service.name: "Shop" is not valid; allowed: ` + name,
		},
		{
			"service name of Consul", func(m *manifest.Manifest) { m.Service = &manifest.Service{Name: "consul"} },
			`service.name: "consul" is not valid; allowed: ` + taken,
		},
		{
			"service port", func(m *manifest.Manifest) { m.Service = &manifest.Service{Port: "admin"} },
			`service.port: "admin" is not valid; allowed: the name of one of the pod's ports: http`,
		},
		{
			"service name too long with a port", func(m *manifest.Manifest) {
				m.Service = &manifest.Service{Name: strings.Repeat("a", 58)}
				m.Ports = append(m.Ports, manifest.Port{Name: "abcd", Port: 1}, manifest.Port{Name: "abcde", Port: 2},
					manifest.Port{Name: "abcdef", Port: 3})
			},
			`service.name: "` + strings.Repeat("a", 58) +
				`-abcde" is not valid; allowed: at most 63 characters together with "-" and the name of each further port; give the service a shorter name`,
		},
		{
			"tags", func(m *manifest.Manifest) { m.Service = &manifest.Service{Tags: []string{"a", "a", "b c", ""}} },
			"service.tags[1]: \"a\" is not valid; allowed: " + unique +
				"\nservice.tags[2]: \"b c\" is not valid; allowed: " + tag +
				"\nservice.tags[3]: \"\" is not valid; allowed: " + tag,
		},
		{"too many tags", func(m *manifest.Manifest) {
			m.Service = &manifest.Service{}
			for i := range 65 {
				m.Service.Tags = append(m.Service.Tags, fmt.Sprint(i))
			}
		}, "service.tags: 65 entries is not valid; allowed: 0 to 64 entries"},
		{
			"meta", func(m *manifest.Manifest) {
				m.Service = &manifest.Service{Meta: map[string]string{
					"a b": "", "consul-x": "",
					"rcfarm_node": "n1", "ok": "a\nb",
				}}
			},
			"service.meta.a b: \"a b\" is not valid; allowed: " + metaKey + "\nservice.meta.consul-x: \"consul-x\" " +
				"is not valid; allowed: " + metaKey +
				"\nservice.meta.ok: \"a\\nb\" is not valid; allowed: at most 512 characters, none of them a control " +
				"character" +
				"\nservice.meta.rcfarm_node: \"rcfarm_node\" is not valid; allowed: " + metaKey,
		},
		{
			"no launchables", func(m *manifest.Manifest) { m.Launchables = nil },
			"launchables: missing; allowed: " + count,
		},
		{"too many launchables", func(m *manifest.Manifest) {
			for i := range 16 {
				l := m.Launchables[0]
				l.Name = fmt.Sprintf("l%d", i)
				m.Launchables = append(m.Launchables, l)
			}
		}, "launchables: 17 entries is not valid; allowed: " + count},
		{
			"launchable twice", func(m *manifest.Manifest) { m.Launchables = append(m.Launchables, m.Launchables[0]) },
			`launchables[1].name: "server" is not valid; allowed: ` + unique,
		},
		{
			"no kind", func(m *manifest.Manifest) { m.Launchables[0].Artifact.Kind = "" },
			"launchables[0].artifact.kind: missing; allowed: tar, exec or image",
		},
		{
			"kind", func(m *manifest.Manifest) { m.Launchables[0].Artifact.Kind = "zip" },
			`launchables[0].artifact.kind: "zip" is not valid; allowed: tar, exec or image`,
		},
		{
			"no url", func(m *manifest.Manifest) { m.Launchables[0].Artifact.URL = "" },
			"launchables[0].artifact.url: missing; allowed: " + url,
		},
		{
			"file with a query", func(m *manifest.Manifest) { m.Launchables[0].Artifact.URL = "file:///a?b" },
			`launchables[0].artifact.url: "file:///a?b" is not valid; allowed: ` + url,
		},
		{
			"no host", func(m *manifest.Manifest) { m.Launchables[0].Artifact.URL = "https://:443/a" },
			`launchables[0].artifact.url: "https://:443/a" is not valid; allowed: ` + url,
		},
		{
			"user", func(m *manifest.Manifest) { m.Launchables[0].Artifact.URL = "https://u:p@h/a" },
			`launchables[0].artifact.url: "https://u:p@h/a" is not valid; allowed: ` + url,
		},
		{
			"control character in the url",
			func(m *manifest.Manifest) { m.Launchables[0].Artifact.URL = "https://h/\n" },
			`launchables[0].artifact.url: "https://h/\n" is not valid; allowed: ` + url,
		},
		{
			"upper-case digest",
			func(m *manifest.Manifest) {
				m.Launchables[0].Artifact.SHA256 = strings.Repeat("A", 64)
			},
			`launchables[0].artifact.sha256: "` + strings.Repeat("A", 64) + `" is not valid; allowed: ` + digest,
		},
		{
			"digest with a newline",
			func(m *manifest.Manifest) {
				m.Launchables[0].Artifact.SHA256 = strings.Repeat("a", 64) + "\n"
			},
			`launchables[0].artifact.sha256: "` + strings.Repeat("a", 64) + `\n" is not valid; allowed: ` + digest,
		},
		{
			"argument", func(m *manifest.Manifest) { m.Launchables[0].Args = []string{"ok", "a\x00b"} },
			`launchables[0].args[1]: "a\x00b" is not valid; allowed: ` + text,
		},
		{
			"too many arguments", func(m *manifest.Manifest) { m.Launchables[0].Args = make([]string, 129) },
			"launchables[0].args: 129 entries is not valid; allowed: 0 to 128 entries",
		},
		{
			"environment name", func(m *manifest.Manifest) { m.Launchables[0].Env = map[string]string{"1A": "x"} },
			`launchables[0].env.1A: "1A" is not valid; allowed: ` + env,
		},
		{
			"cpu", func(m *manifest.Manifest) { m.Launchables[0].Resources.CPU = -1 },
			"launchables[0].resources.cpu: -1 is not valid; allowed: thousandths of a core, from 0 to 1000000",
		},
		{
			"memory that overflows", func(m *manifest.Manifest) { m.Launchables[0].Resources.Memory = 1 << 62 },
			"launchables[0].resources.memory: 4611686018427387904 is not valid; allowed: bytes, from 0 to " +
				"1125899906842624",
		},
		{
			"port", func(m *manifest.Manifest) { m.Ports[0].Port = 65536 },
			"ports[0].port: 65536 is not valid; allowed: a TCP port from 1 to 65535, or dynamic: true in place of it",
		},
		{"port number twice", func(m *manifest.Manifest) {
			m.Ports = append(m.Ports, manifest.Port{Name: "other", Port: 8080})
		}, `ports[1].port: "8080" is not valid; allowed: ` + unique},
		{
			"port name twice",
			func(m *manifest.Manifest) {
				m.Ports = append(m.Ports,
					manifest.Port{Name: "http", Port: 1})
			}, `ports[1].name: "http" is not valid; allowed: ` + unique,
		},
		{
			"two ports without a name", func(m *manifest.Manifest) {
				m.Ports,
					m.Health = []manifest.Port{{Port: 1}, {Port: 2}}, nil
			},
			"ports[0].name: missing; allowed: " + name + "\nports[1].name: missing; allowed: " + name,
		},
		{
			"no check", func(m *manifest.Manifest) { m.Health = &manifest.Health{} },
			"health: missing; allowed: exactly one of http, tcp and script",
		},
		{
			"both checks", func(m *manifest.Manifest) { m.Health.TCP = &manifest.TCPCheck{Port: "http"} },
			"health: http together with tcp is not valid; allowed: exactly one of http, tcp and script",
		},
		{
			"unknown port", func(m *manifest.Manifest) { m.Health.HTTP.Port = "web" },
			`health.http.port: "web" is not valid; allowed: the name of one of the pod's ports: http`,
		},
		{
			"port of a pod without ports", func(m *manifest.Manifest) {
				m.Ports, m.Health = nil,
					&manifest.Health{TCP: &manifest.TCPCheck{}}
			},
			"health.tcp.port: missing; allowed: the name of one of the pod's ports: (the pod names no ports)",
		},
		{
			"no path", func(m *manifest.Manifest) { m.Health.HTTP.Path = "" },
			"health.http.path: missing; allowed: " + path,
		},
		{
			"relative path", func(m *manifest.Manifest) { m.Health.HTTP.Path = "health" },
			`health.http.path: "health" is not valid; allowed: ` + path,
		},
		{
			"path that climbs", func(m *manifest.Manifest) { m.Health.HTTP.Path = "/a/../../b" },
			`health.http.path: "/a/../../b" is not valid; allowed: ` + path,
		},
		{
			"path with a space", func(m *manifest.Manifest) { m.Health.HTTP.Path = "/a b" },
			`health.http.path: "/a b" is not valid; allowed: ` + path,
		},
		{
			"path with a header in it", func(m *manifest.Manifest) { m.Health.HTTP.Path = "/a\r\nX: y" },
			`health.http.path: "/a\r\nX: y" is not valid; allowed: ` + path,
		},
		{
			"path with a bad escape", func(m *manifest.Manifest) { m.Health.HTTP.Path = "/%zz" },
			`health.http.path: "/%zz" is not valid; allowed: ` + path,
		},
		{
			"zero interval", func(m *manifest.Manifest) { m.Health.Interval = seconds(0) },
			`health.interval: "0s" is not valid; allowed: a length of time of 1s or more, such as "2s"`,
		},
		{
			"zero timeout", func(m *manifest.Manifest) { m.Health.Timeout = seconds(0) },
			`health.timeout: "0s" is not valid; allowed: a length of time greater than zero, such as "2s"`,
		},
		{
			"ready late", func(m *manifest.Manifest) { m.MinReady, m.Health.MinReady = seconds(86401), nil },
			`min_ready: "24h0m1s" is not valid; allowed: a length of time, at most "24h0m0s"; 0s: at once`,
		},
		{
			"ready twice", func(m *manifest.Manifest) { m.MinReady = seconds(0) },
			`health.min_ready: min_ready together with health.min_ready is not valid; allowed: min_ready, which is the pod's, alone`,
		},
		{
			"restarted soon", func(m *manifest.Manifest) { m.Health.RestartAfter = seconds(9) },
			`health.restart_after: "9s" is not valid; allowed: ` + after + `"1.5s"`,
		},
		{
			"restarted late", func(m *manifest.Manifest) { m.Health.RestartAfter = seconds(86401) },
			`health.restart_after: "24h0m1s" is not valid; allowed: ` + after + `"1.5s"`,
		},
		{"restarted before it can pass", func(m *manifest.Manifest) {
			m.Health.RestartAfter, m.Health.Interval, m.Health.Timeout, m.Health.SuccessThreshold = seconds(
				69), seconds(20), seconds(10), 3
		}, `health.restart_after: "1m9s" is not valid; allowed: ` + after + `"1m10s"`},
		{
			"restarted once", func(m *manifest.Manifest) {
				m.Health.RestartAfter = seconds(10)
				m.Launchables = append(m.Launchables, manifest.Launchable{
					Name: "job", Artifact: m.Launchables[0].Artifact,
					Restart: &manifest.Restart{Policy: manifest.RestartNever},
				})
			},
			"health.restart_after: restart_after together with launchables[1].restart.policy never is not valid; " +
				"allowed: one of them",
		},
		{
			"restarted without a check",
			func(m *manifest.Manifest) {
				m.Health = &manifest.Health{RestartAfter: seconds(10)}
			},
			"health: missing; allowed: exactly one of http, tcp and script",
		},
		{
			"label key", func(m *manifest.Manifest) { m.Labels = map[string]string{"a b": "c"} },
			`labels.a b: "a b=c" is not valid; allowed: ` + labels,
		},
		{
			"label value", func(m *manifest.Manifest) { m.Labels = map[string]string{"a": "c/d"} },
			`labels.a: "a=c/d" is not valid; allowed: ` + labels,
		},
		{"too many labels", func(m *manifest.Manifest) {
			m.Labels = map[string]string{}
			for i := range 65 {
				m.Labels[fmt.Sprintf("l%d", i)] = ""
			}
		}, "labels: 65 entries is not valid; allowed: 0 to 64 entries"},
		{"too large", func(m *manifest.Manifest) {
			for range 17 {
				m.Launchables[0].Args = append(m.Launchables[0].Args, strings.Repeat("x", manifest.MaxTextBytes))
			}
		}, "document: 70151 bytes of canonical JSON is not valid; allowed: at most 65536 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := decode(t, full)
			tt.change(m)
			got := ""
			if err := m.Validate().Err(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
