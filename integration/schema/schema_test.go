package schema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/golden"
	"github.com/rcfarm/rcfarm/integration/schema"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

var update = flag.Bool("update", false, "write docs/*.schema.json anew")

type kind struct {
	name, id, text string
	decode         func([]byte) error
	pages          []string
}

func kinds() []kind {
	return []kind{
		{
			"manifest", schema.ManifestID, docs.ManifestSchema,
			func(d []byte) error { _, err := manifest.Decode(d); return err },
			[]string{"docs/manifest.md"},
		},
		{
			"controller", schema.ControllerID, docs.ControllerSchema, func(d []byte) error {
				_, _, err := inspect.DecodeShown(d)
				return err
			},
			[]string{"docs/controller.md"},
		},
		{
			"service", schema.ServiceID, docs.ServiceSchema,
			func(d []byte) error { _, err := record.Decode(d); return err },
			[]string{"docs/deploying.md", "docs/getting-started.md"},
		},
	}
}

func (k kind) compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(k.text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(k.id, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(k.id)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func conforms(t *testing.T, compiled *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(doc)
}

func read(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The schemas are the ones that `make schema` makes.
func TestSchemasAreUpToDate(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	made, err := schema.Schemas(root)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, made, *update, "schema")
}

// Every field of a document has a description.
func TestEveryFieldIsDescribed(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		var doc struct {
			Defs map[string]struct {
				Properties map[string]struct{ Description string }
			} `json:"$defs"`
		}
		if err := json.Unmarshal([]byte(k.text), &doc); err != nil {
			t.Fatal(err)
		}
		for name, def := range doc.Defs {
			for property, p := range def.Properties {
				if property != "$file" && (len(p.Description) < 5 || strings.ContainsAny(p.Description, "`[|")) {
					t.Errorf("%s: field %s of %s is described as %q", k.name, property, name, p.Description)
				}
			}
		}
	}
}

var yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```")

// The examples of the documentation are valid, by the schema and by validation.
func TestExamplesConform(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		compiled := k.compile(t)
		for _, page := range k.pages {
			blocks := yamlBlock.FindAllStringSubmatch(read(t, page), -1)
			if len(blocks) == 0 {
				t.Errorf("%s has no example", page)
			}
			for _, block := range blocks {
				text := block[1]
				doc, err := document.ToJSON([]byte(text), k.name)
				if err != nil {
					t.Errorf("%s: %v in\n%s", page, err, text)
					continue
				}
				if err := k.decode(doc); err != nil {
					t.Errorf("%s: %v in\n%s", page, err, text)
				}
				if err := conforms(t, compiled, doc); err != nil {
					t.Errorf("%s: %v in\n%s", page, err, text)
				}
			}
		}
	}
}

const (
	aPod     = `"pod": {"version": 1, "id": "web", "launchables": [{"name": "server", "artifact": {"kind": "exec", "path": "/bin/x"}}]}`
	unpinned = `"pod": {"version": 1, "id": "web", "launchables": [{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/a.tar.gz"}}]}`
)

// The schemas accept a document exactly if validation accepts it.
func TestSchemasAgree(t *testing.T) {
	t.Parallel()
	both, controller, service := []string{"controller", "service"}, []string{"controller"}, []string{"service"}
	for _, tt := range []struct {
		kinds  []string
		fields string
		valid  bool
	}{
		{both, `"name": "web", "replicas": 3, ` + aPod, true},
		{both, `"name": "web", "replicas": 3, "replica_groups": [], ` + aPod, true},
		{both, `"name": "web", "replica_groups": [{"role": "main", "count": 3}], ` + aPod, true},
		{both, `"name": "web", "replicas": null, "replica_groups": [{"role": "main", "count": 3}], ` + aPod, true},
		{
			both,
			`"name": "web", "replicas": 0, "node_selector": "a in (b)", "spread": "example.org/rack", "strategy": "", "progress_deadline": "2m", ` + aPod, true,
		},
		{
			both,
			`"name": "web", "replicas": 3, "node_loss": {"action": "keep", "after": "1s"}, "pod_labels": {"a": "b"}, ` +
				aPod, true,
		},
		{both, `"name": "web", "mode": "each-node", ` + aPod, true},
		{
			both,
			`"name": "web", "mode": "each-node", "replicas": null, "replica_groups": [], "node_loss": {"action": ""}, "strategy": "dynamic", ` + aPod, true,
		},
		{both, `"name": "web", "mode": "replicas", "replicas": 3, ` + aPod, true},
		{both, `"name": "web", "mode": "", "replicas": 3, ` + aPod, true},
		{both, `"name": "web", "mode": "replicas", ` + aPod, false},
		{both, `"name": "web", "mode": "every", "replicas": 3, ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "replicas": 3, ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "replica_groups": [{"role": "main", "count": 3}], ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "max_per_node": 1, ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "spread": "rack", ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "strategy": "static", ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "node_loss": {"after": "1s"}, ` + aPod, false},
		{controller, `"name": "web", "mode": "each-node", "max_surge": 1, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": {"label": "rack"}, ` + aPod, true},
		{
			both, `"name": "web", "replicas": 3, "spread": {"label": "rack", "skew": 2, "when": "require"}, ` + aPod,
			true,
		},
		{both, `"name": "web", "replicas": 3, "spread": {"skew": 2}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": {"label": "a rack", "when": "require"}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": {"label": "rack", "when": "always"}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": {"label": "rack", "skew": -1}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": {"label": "rack", "skw": 1}, ` + aPod, false},
		{
			both,
			`"name": "web", "replicas": 3, "affinity": [{"selector": "disk=ssd", "weight": 10}], "placing": "pack", ` +
				aPod, true,
		},
		{both, `"name": "web", "replicas": 3, "affinity": [{"selector": "disk=ssd", "weight": 0}], ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "affinity": [{"selector": "", "weight": 1}], ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "placing": "tight", ` + aPod, false},
		{both, `"name": "web", "mode": "each-node", "placing": "pack", ` + aPod, false},
		{
			both, `"name": "web", "mode": "each-node", "affinity": [{"selector": "disk=ssd", "weight": 1}], ` + aPod,
			false,
		},
		{both, `"name": "web", "replicas": 3`, false},
		{both, `"name": "web", ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "replica_groups": [{"role": "main", "count": 3}], ` + aPod, false},
		{both, `"name": "web", "replica_groups": [{"role": "main"}], ` + aPod, false},
		{both, `"name": "Web", "replicas": 3, ` + aPod, false},
		{both, `"name": "web", "replicas": -1, ` + aPod, false},
		{both, `"name": "web", "replicas": 10001, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "replica": 3, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "strategy": "sometimes", ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "spread": "a rack", ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "pod_labels": {"pod_id": "b"}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "labels": {"a b": "c"}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "node_loss": {"action": "wait"}, ` + aPod, false},
		{both, `"name": "web", "replicas": 3, "progress_deadline": 5, ` + aPod, false},
		{controller, `"name": "web", "replicas": 3, "generation": 7, "status": {"state": "x"}, ` + aPod, true},
		{controller, `"name": "web", "replicas": 3, ` + unpinned, false},
		{controller, `"replicas": 3, ` + aPod, false},
		{controller, `"name": "web", "replicas": 3, "update": {}, ` + aPod, false},
		{service, `"replicas": 3, ` + unpinned, true},
		{
			service,
			`"name": "web", "replicas": 3, "update": {"step": "10%", "max_surge": 1, "stage_timeout": "0s", "gates": {"before_stage": [{"url": "https://a", "retries": 0}]}}, ` + aPod, true,
		},
		{
			service,
			`"name": "web", "replicas": 3, "update": {"strategy": "canary", "canary": {"pods": 2}, "group_order": ["main"]}, "pre_deploy": {"args": ["up"]}, ` + aPod, true,
		},
		{service, `"name": "web", "replicas": 3, "update": {"step": null, "max_surge": "0%"}, "pre_deploy": null, ` +
			aPod, true},
		{service, `"name": "web", "replicas": 3, "generation": 7, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "disabled": true, ` + aPod, false},
		{service, `"name": "` + strings.Repeat("a", record.MaxNameBytes+1) + `", "replicas": 3, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "labels": {"service": "x"}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "digests": "sometimes", ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"step": 0}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"step": "0%"}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"step": "101%"}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"max_surge": "3"}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"strategy": "hope"}, ` + aPod, false},
		{service, `"name": "web", "replicas": 3, "update": {"canary": {}}, ` + aPod, false},
		{
			service, `"name": "web", "replicas": 3, "update": {"gates": {"before_stage": [{"url": "ftp://a"}]}}, ` + aPod,
			false,
		},
		{
			service, `"name": "web", "replicas": 3, "update": {"gates": {"after_stage": [{"path": "a"}]}}, ` + aPod,
			false,
		},
	} {
		for _, k := range kinds() {
			if !slices.Contains(tt.kinds, k.name) {
				continue
			}
			doc := []byte("{" + tt.fields + "}")
			if err := k.decode(doc); (err == nil) != tt.valid {
				t.Errorf("validation of a %s: %v for %s", k.name, err, doc)
			}
			if err := conforms(t, k.compile(t), doc); (err == nil) != tt.valid {
				t.Errorf("schema of a %s: %v for %s", k.name, err, doc)
			}
		}
	}
}
