package plan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// sample is a document with everything pinned. more replaces or adds fields of it, as JSON, each with its path of one
// or two parts.
func sample(t testing.TB, more ...string) *record.ServiceSpec {
	t.Helper()
	s, err := record.Decode(sampleJSON(t, more...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const sampleText = `{"name": "web", "replicas": 3, "pod": {"version": 1, "id": "web",
	"launchables": [{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web-1.2.tar.gz",
		"sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, "args": ["-v"], "env": {"TOKEN": "abc"}}],
	"ports": [{"name": "http", "dynamic": true}, {"name": "admin", "dynamic": true}]}}`

func sampleJSON(t testing.TB, more ...string) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(sampleText), &doc); err != nil {
		t.Fatal(err)
	}
	for _, m := range more {
		path, text, _ := strings.Cut(m, "=")
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatalf("%s: %v", m, err)
		}
		in := doc
		if top, below, nested := strings.Cut(path, "."); nested {
			if in[top] == nil {
				in[top] = map[string]any{}
			}
			in, path = in[top].(map[string]any), below
		}
		if in[path] = value; value == nil {
			delete(in, path)
		}
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecodeMistakes(t *testing.T) {
	long := strings.Repeat("n", record.MaxNameBytes)
	for _, tt := range []struct{ change, want string }{
		{`name="` + long + `"`, ``},
		{
			`name="` + long + `n"`,
			`name: "` + long +
				`n" is not valid; allowed: 1 to 50 lower-case letters, digits and '-', starting and ending with a letter or digit`,
		},
		{`name="a b"`, `name: "a b" is not valid`},
		{`name="a/b"`, `name: "a/b" is not valid`},
		{`name=""`, ``},
		{`nope=1`, `nope: unknown field; allowed: affinity, digests, labels, max_per_node`},
		{`replicas=null`, `replicas: missing; allowed: exactly one of`},
		{`replica_groups=[{"role": "a", "count": 1}]`, `replicas: replicas together with replica_groups is not valid`},
		{
			`labels={"service": "x"}`,
			`labels.service: "x" is not valid; allowed: any other key; a deployment sets this one`,
		},
		{`pod=null`, `pod: missing`},
		{`digests="now"`, `digests: "now" is not valid; allowed: always, missing or never`},
		{`digests="always"`, ``},
		{
			`update.strategy="fast"`,
			`update.strategy: "fast" is not valid; allowed: availability, blue-green, canary, in-place, resourceutil`,
		},
		{`update.step="10%"`, ``},
		{`update.step=20000`, `update.step: "20000" is not valid; allowed: a whole number of replicas from 0 to 10000`},
		{
			`update.max_surge=10001`,
			`update.max_surge: "10001" is not valid; allowed: a whole number of replicas from 0 to 10000`,
		},
		{
			`update.canary={"pods": 10001}`,
			`update.canary.pods: 10001 is not valid; allowed: a whole number from 1 to 10000`,
		},
		{
			`update.min_available=10001`,
			`update.min_available: 10001 is not valid; allowed: a whole number from 0 to 10000`,
		},
		{`update.delay="90000h"`, `update.delay: 90000h0m0s is not valid; allowed: a length of time from 0s to 87600h`},
		{`update.step=0`, `update.step: "0" is not valid; allowed: 1 to 10000 replicas`},
		{`update.stage_timeout="10.001s"`, ``},
		{`update.stage_timeout="0s"`, ``},
		{
			`update.stage_timeout="10s"`,
			`update.stage_timeout: 10s is not valid; allowed: more than 10s, for which a pod runs before it is ` +
				`available (pod.min_ready), or 0s for no limit`,
		},
		{`pod.min_ready="119s"`, ``},
		{
			`pod.min_ready="2m"`,
			`update.stage_timeout: 2m0s, the default, is not valid; allowed: more than 2m0s, for which a pod runs`,
		},
		{
			`pod.service={"drain": "1m"};update.stage_timeout="1m"`,
			`update.stage_timeout: 1m0s is not valid; allowed: more than 1m0s, for which a pod serves on before it ` +
				`stops (pod.service.drain), or 0s`,
		},
		{
			`update={"stage_timeout": "11s", "strategy": "in-place"}`,
			`update.stage_timeout: 11s is not valid; allowed: more than 11s, for which a pod serves on ` +
				`(pod.service.drain) and then runs before it is available (pod.min_ready), or 0s`,
		},
		{`update={"stage_timeout": "11s", "strategy": "canary"}`, ``},
		{`pre_deploy={"args": [` + strings.TrimSuffix(strings.Repeat(`"a",`, 128), ",") + `]}`, ``},
		{
			`pre_deploy={"args": [` + strings.TrimSuffix(strings.Repeat(`"a",`, 129), ",") + `]}`,
			`pre_deploy.args: 129 entries is not valid; allowed: at most 128 entries`,
		},
		{`pre_deploy={"env": {` + manyEnv(129) + `}}`, `pre_deploy.env: 129 entries is not valid`},
	} {
		_, err := record.Decode(sampleJSON(t, strings.Split(tt.change, ";")...))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%.60s: %v", tt.change, err)
		case tt.want != "" &&
			(err == nil || !strings.HasPrefix(err.Error(), tt.want) && !strings.Contains(err.Error(), "; "+tt.want)):
			t.Errorf("%.60s: got  %v\nwant %s", tt.change, err, tt.want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%.60s: more than one mistake: %v", tt.change, err)
		}
	}
	if _, err := record.Decode([]byte("x")); err == nil || !strings.Contains(err.Error(), "parse document") {
		t.Error(err)
	}
}

func manyEnv(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(`"E%d": ""`, i))
	}
	return strings.Join(parts, ",")
}

// A document may leave out a digest. A manifest must have all digests.
func TestDigestsMayBeLeftOut(t *testing.T) {
	s := sample(t, `pod.launchables=[{"name": "a", "artifact": {"kind": "tar", "url": "https://f.example/a.tar.gz"}}]`)
	if got := s.Pod.Launchables[0].Artifact.SHA256; got != "" {
		t.Errorf("the digest became %q", got)
	}
	_, err := record.Decode(sampleJSON(t,
		`pod.launchables=[{"name": "a", "artifact": {"kind": "tar", "url": "https://f.example/a", "sha256": "x"}}]`))
	if err == nil || !strings.Contains(err.Error(), "pod.launchables[0].artifact.sha256") {
		t.Error(err)
	}
	_, err = record.Decode(
		sampleJSON(t, `pod.launchables=[{"name": "a", "artifact": {"kind": "exec", "path": "/bin/true"}}]`),
	)
	if err != nil {
		t.Error(err)
	}
}

func TestGroupsAndTotal(t *testing.T) {
	three, one := 3, 1
	short := &record.ServiceSpec{Replicas: &three}
	if diff := cmp.Diff([]rc.ReplicaGroup{{Role: "main", Count: &three}}, short.Groups()); diff != "" ||
		short.Total() != 3 {
		t.Error(diff, short.Total())
	}
	long := &record.ServiceSpec{
		ReplicaGroups: []rc.ReplicaGroup{{Role: "a", Count: &three}, {Role: "b", Count: &one}, {Role: "c"}},
	}
	if got := long.Groups(); len(got) != 3 || long.Total() != 4 {
		t.Error(got, long.Total())
	}
}
