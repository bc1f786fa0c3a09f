package rc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

const podText = `"pod":{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"tar","url":"https://files.example/a",` +
	`"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}]}`

func TestDecodeSpec(t *testing.T) {
	const (
		count = "a whole number from 0 to 10000"
		oneOf = "exactly one of replicas and replica_groups"
		key   = "the key of a node label in Kubernetes' syntax, such as rack or example.org/rack: an optional DNS " +
			"prefix and '/', " +
			"then up to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
		form   = "the key of a node label, or a map with the fields label, skew, when"
		sel    = `a Kubernetes label selector, such as "rack in (a,b),disk=ssd"`
		each   = "nothing where mode is each-node: "
		counts = "there is one pod on every matching node"
		stays  = "no pod is ever placed elsewhere"
		name   = "1 to 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
	)
	for _, tt := range []struct {
		name, in string // the document between its braces, without the pod
		want     string // one line per mistake; empty: valid
	}{
		{"replicas", `"name":"web","replicas":0`, ""},
		{"groups", `"name":"web","replica_groups":[{"role":"a","count":1},{"role":"b","count":9999}]`, ""},
		{"everything", `"name":"web","replicas":1,"labels":{"a":"b"},"node_selector":"a=b","pod_labels":{"x.y/z":""},"max_per_node":1,"spread":"rack",
			"min_available":0,"max_surge":0,"node_loss":{"action":"keep","after":"1s","unmanaged_after":"1m"},"progress_deadline":"1m30s","strategy":"static","disabled":true`, ""},
		{"no name", `"replicas":1`, "name: missing; allowed: " + name},
		{
			"name", `"name":"` + strings.Repeat("a", 64) + `","replicas":1`,
			`name: "` + strings.Repeat("a", 64) + `" is not valid; allowed: ` + name,
		},
		{"no count", `"name":"web"`, "replicas: missing; allowed: " + oneOf},
		{"null count", `"name":"web","replicas":null`, "replicas: missing; allowed: " + oneOf},
		{
			"both counts", `"name":"web","replicas":1,"replica_groups":[{"role":"a","count":1}]`,
			"replicas: replicas together with replica_groups is not valid; allowed: " + oneOf,
		},
		{"negative", `"name":"web","replicas":-1`, "replicas: -1 is not valid; allowed: " + count},
		{"too many", `"name":"web","replicas":10001`, "replicas: 10001 is not valid; allowed: " + count},
		{
			"group without count", `"name":"web","replica_groups":[{"role":"a"}]`,
			"replica_groups[0].count: missing; allowed: " + count,
		},
		{
			"group without role", `"name":"web","replica_groups":[{"count":1}]`,
			"replica_groups[0].role: missing; allowed: " + name,
		},
		{
			"too many in a group", `"name":"web","replica_groups":[{"role":"a","count":20000}]`,
			"replica_groups[0].count: 20000 is not valid; allowed: " + count,
		},
		{
			"too many in all", `"name":"web","replica_groups":[{"role":"a","count":6000},{"role":"b","count":6000}]`,
			"replica_groups: 12000 replicas in all is not valid; " +
				"allowed: at most 10000 replicas in all groups together",
		},
		{
			"group of its own",
			`"name":"web","replica_groups":[{"role":"a","count":1,"env":{"A":"b"},"command":"bin/a","resources":{"memory":"1Gi"}}]`, "",
		},
		{
			"group with a bad command",
			`"name":"web","replica_groups":[{"role":"a","count":1},{"role":"b","count":1,"command":"/bin/b"}]`,
			`replica_groups[1].command: "/bin/b" is not valid; allowed: a path in the artifact such as bin/launch: not absolute, without '.', '..', empty parts and control characters`,
		},
		{
			"group with a bad variable", `"name":"web","replica_groups":[{"role":"a","count":1,"env":{"A=":"b"}}]`,
			`replica_groups[0].env.A=: "A=" is not valid; allowed: a name of letters, digits and '_' that does not start with a digit`,
		},
		{
			"group with bad resources",
			`"name":"web","replica_groups":[{"role":"a","count":1,"resources":{"pids":-1}}]`,
			"replica_groups[0].resources.pids: -1 is not valid; allowed: processes and threads, from 0 to 4194304",
		},
		{
			"groups that all want much", `"name":"web","replica_groups":[` + groupsWith(12, 40) + "]",
			"replica_groups: 971232 bytes of manifests and of what makes them is not valid; allowed: at most 360000 " +
				"bytes for all groups together",
		},
		{
			"a group whose env is too large beside the pod's",
			`"name":"web","replica_groups":[{"role":"a","count":1},` + groupsWith(1, 70) + "]",
			"replica_groups[1].env: 71040 bytes of canonical JSON is not valid; allowed: at most 65536 bytes",
		},
		{
			"role twice", `"name":"web","replica_groups":[{"role":"a","count":1},{"role":"a","count":1}]`,
			`replica_groups[1].role: "a" is not valid; allowed: a role that no other group has`,
		},
		{
			"too many groups", `"name":"web","replica_groups":[` + strings.Repeat(`{"role":"a"},`, 64) +
				`{"role":"a"}]`,
			"replica_groups: 65 groups is not valid; allowed: 1 to 64 groups",
		},
		{
			"selector", `"name":"web","replicas":1,"node_selector":"rack in ("`,
			`node_selector: "rack in (" is not valid; allowed: a Kubernetes label selector, such as "rack in (a,b),disk=ssd"`,
		},
		{"spread with a prefix", `"name":"web","replicas":1,"spread":"example.org/rack"`, ""},
		{"spread without a key", `"name":"web","replicas":1,"spread":""`, ""},
		{
			"spread over a selector", `"name":"web","replicas":1,"spread":"rack=a"`,
			`spread: "rack=a" is not valid; allowed: ` + key,
		},
		{
			"spread over two keys", `"name":"web","replicas":1,"spread":"rack,zone"`,
			`spread: "rack,zone" is not valid; allowed: ` + key,
		},
		{
			"spread over a key too long", `"name":"web","replicas":1,"spread":"` + strings.Repeat("r", 64) + `"`,
			`spread: "` + strings.Repeat("r", 64) + `" is not valid; allowed: ` + key,
		},
		{
			"spread of another type", `"name":"web","replicas":1,"spread":["rack"]`,
			`spread: a list is not valid; allowed: ` + form,
		},
		{"spread in full", `"name":"web","replicas":1,"spread":{"label":"rack","skew":2,"when":"require"}`, ""},
		{
			"spread without a label", `"name":"web","replicas":1,"spread":{"when":"require"}`,
			`spread.label: "" is not valid; allowed: ` + key,
		},
		{
			"a skew that is none", `"name":"web","replicas":1,"spread":{"label":"rack","skew":-1,"when":"always"}`,
			"spread.skew: -1 is not valid; allowed: a whole number from 1 to 10000; 0 means 1\n" +
				`spread.when: "always" is not valid; allowed: prefer or require`,
		},
		{
			"spread with a slip", `"name":"web","replicas":1,"spread":{"label":"rack","skw":1}`,
			"spread.skw: unknown field; allowed: label, skew, when",
		},
		{"what the store says", `"name":"web","replicas":1,"made_in":"n"`, "made_in: unknown field; allowed: " +
			"affinity, disabled, labels, max_per_node, max_surge, min_available, mode, name, node_loss, " +
			"node_selector, placing, pod, pod_labels, progress_deadline, replica_groups, replicas, spread, strategy"},
		{
			"affinity", `"name":"web","replicas":1,"affinity":[{"selector":"disk=ssd","weight":100}],"placing":"pack"`,
			"",
		},
		{
			"affinity to nothing",
			`"name":"web","replicas":1,"affinity":[{"selector":"","weight":0},{"selector":"a in (","weight":101}]`,
			"affinity[0].selector: missing; allowed: " + sel + "\naffinity[0].weight: 0 is not valid; allowed: a " +
				"whole number from 1 to 100\n" +
				`affinity[1].selector: "a in (" is not valid; allowed: ` + sel + "\naffinity[1].weight: 101 is not " +
				"valid; allowed: a whole number from 1 to 100",
		},
		{
			"placing", `"name":"web","replicas":1,"placing":"tight"`,
			`placing: "tight" is not valid; allowed: spread or pack`,
		},
		{
			"per node", `"name":"web","replicas":1,"max_per_node":-1`,
			"max_per_node: -1 is not valid; allowed: " + count + "; 0 means no limit",
		},
		{
			"minimum", `"name":"web","replicas":1,"min_available":-1`,
			"min_available: -1 is not valid; allowed: " + count,
		},
		{
			"surge that overflows", `"name":"web","replicas":1,"max_surge":9223372036854775807`,
			"max_surge: 9223372036854775807 is not valid; allowed: " + count,
		},
		{
			"action", `"name":"web","replicas":1,"node_loss":{"action":"drop"}`,
			`node_loss.action: "drop" is not valid; allowed: replace or keep`,
		},
		{
			"strategy", `"name":"web","replicas":1,"strategy":"best"`,
			`strategy: "best" is not valid; allowed: dynamic or static`,
		},
		{
			"reserved label", `"name":"web","replicas":1,"pod_labels":{"pod_id":"x"}`,
			`pod_labels.pod_id: "x" is not valid; allowed: any other key; rcfarm sets this one`,
		},
		{
			"deadline", `"name":"web","replicas":1,"progress_deadline":"0s"`,
			`progress_deadline: 0s is not valid; allowed: a length of time with a unit, more than zero, such as "30s" or "2m"`,
		},
		{"each node", `"name":"web","mode":"each-node","min_available":3,"strategy":"dynamic"`, ""},
		{"counted by hand", `"name":"web","mode":"replicas","replicas":3`, ""},
		{
			"mode", `"name":"web","mode":"daemon","replicas":3`,
			`mode: "daemon" is not valid; allowed: replicas or each-node`,
		},
		{
			"each node and a number", `"name":"web","mode":"each-node","replicas":0`,
			"replicas: 0 is not valid; allowed: " + each + counts,
		},
		{
			"each node and groups", `"name":"web","mode":"each-node","replica_groups":[{"role":"a","count":1}]`,
			"replica_groups: 1 groups is not valid; allowed: " + each + counts,
		},
		{
			"each node and what has no meaning there",
			`"name":"web","mode":"each-node","max_per_node":2,"spread":"rack","max_surge":0,"node_loss":{"action":"keep"},"strategy":"static"`,
			"max_per_node: 2 is not valid; allowed: " + each + counts + "\n" +
				`spread: "rack" is not valid; allowed: ` + each + counts + "\n" +
				"max_surge: 0 is not valid; allowed: " + each + stays + "\n" +
				"node_loss: a map is not valid; allowed: " + each + stays + "\n" +
				`strategy: "static" is not valid; allowed: ` + each + stays + ", and a drained node is to be emptied",
		},
		{
			"two mistakes", `"name":"web","replicas":-1,"strategy":"best"`,
			"replicas: -1 is not valid; allowed: " + count + "\n" +
				`strategy: "best" is not valid; allowed: dynamic or static`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rc.DecodeSpec([]byte("{" + tt.in + "," + podText + "}"))
			if got := fmt.Sprint(err); err == nil && tt.want != "" || err != nil && got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestDecodeSpecPod(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"web","replicas":1}`:            "pod: missing; allowed: the pod's manifest",
		`{"name":"web","replicas":1,"pod":null}`: "pod: missing; allowed: the pod's manifest",
		`{"name":"web","replicas":1,"pod":[]}`: "pod: a list is not valid; allowed: a map with the fields config, " +
			"disconnect, health, hooks, id, labels, launchables, min_ready, ports, service, version, volumes",
		`{"name":"web","replicas":1,` + strings.Replace(podText, `"version":1`,
			`"version":1,"labels":{"replication_controller_id":"x"}`, 1) +
			`}`: `pod.labels.replication_controller_id: "x" is not valid; allowed: any other key; rcfarm sets this one`,
		`{"name":"web","replicas":1,` + strings.Replace(podText, `"tar"`, `"zip"`, 1) +
			`}`: `pod.launchables[0].artifact.kind: "zip" is not valid; allowed: tar, exec or image`,
	} {
		if _, err := rc.DecodeSpec([]byte(in)); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// A record with a pod on each node has no groups, because a farm that does not know the mode must not act on it.
func TestEachNodeIsKept(t *testing.T) {
	spec, err := rc.DecodeSpec([]byte(`{"name":"web","mode":"each-node",` + podText + `}`))
	if err != nil {
		t.Fatal(err)
	}
	r := rc.RC{ID: "a"}
	spec.Apply(&r, rc.Digests{Base: "d"})
	if err := r.Check(); err != nil || !r.EachNode() || r.ReplicaGroups != nil || r.ReplacesLost() || r.Surge() != 0 {
		t.Errorf("%v: %+v", err, r)
	}
	if diff := cmp.Diff(spec, rc.SpecOf(&r, spec.Pod)); diff != "" {
		t.Error(diff)
	}
	if c := r.CountedBy(3); c.Desired() != 3 || r.Desired() != 0 {
		t.Errorf("counted: %+v of %+v", c, r)
	}
	for mode, want := range map[rc.Mode]bool{rc.EachNode: true, rc.Replicas: false, "": false, "later": false} {
		r.Mode = mode
		if err := r.Check(); (err == nil) != want {
			t.Errorf("mode %q without groups: %v", mode, err)
		}
	}
}

func TestApply(t *testing.T) {
	spec, err := rc.DecodeSpec(
		[]byte(`{"name":"web","replicas":2,"node_selector":" a=b ","spread":"rack",` + podText + `}`))
	if err != nil {
		t.Fatal(err)
	}
	r := record()
	spec.Apply(&r, rc.Digests{Base: "d"})
	want := rc.RC{
		ID: r.ID, Name: "web", ManifestDigest: "d", NodeSelector: "a=b", Spread: rc.Spread{Label: "rack"},
		Strategy:      rc.Dynamic,
		ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: ptr(2)}},
		DeletedAt:     r.DeletedAt, Generation: 7, ChangedBy: "ann@host", AllowMassStop: 7, Service: r.Service,
		InPlace: r.InPlace,
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}

// groupsWith returns groups, each with some variables of 1,000 bytes.
func groupsWith(groups, variables int) string {
	var all []string
	for g := range groups {
		var env []string
		for i := range variables {
			env = append(env, fmt.Sprintf(`"V%02d_%02d":"%s"`, g, i, strings.Repeat("x", 1000)))
		}
		all = append(all, fmt.Sprintf(`{"role":"r%d","count":1,"env":{%s}}`, g, strings.Join(env, ",")))
	}
	return strings.Join(all, ",")
}
