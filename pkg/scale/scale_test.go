package scale_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/scale"
)

func whole() scale.Request {
	r := scale.NewWithAssignments("web",
		[]scale.ScaleAssignment{{Role: "main", Indices: []uint32{4}}}).WithSpec(scale.Spec{
		Manifest:  json.RawMessage(`{"version":1,"id":"web","launchables":[]}`),
		Signature: "-----BEGIN SSH SIGNATURE-----", Labels: map[string]string{"tier": "front"},
	})
	r.Epoch = &scale.Epoch{
		Cluster: "01jd8k3v9q6t2m5x7z0b4c1n8r", RCID: "01jd8k3v9q6t2m5x7z0b4c1n8s",
		Term: scale.Term("01jd8k3v9q6t2m5x7z0b4c1n8r", 42),
	}
	r.Revision = 1700000000001
	return r
}

// testdata has messages of programs in other languages. They decode into the same values that the constructors make,
// and encode again unchanged.
func TestGoldenFiles(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]any{
		"minimal": new(scale.New("web", 3)),
		"assignments": new(scale.NewWithAssignments("db",
			[]scale.ScaleAssignment{{Role: "primary", Indices: []uint32{0}}, {Role: "read", Indices: []uint32{1, 2}}})),
		"whole":    new(whole()),
		"none":     new(scale.NewWithAssignments("db", []scale.ScaleAssignment{{Role: "read", Indices: []uint32{}}})),
		"taken":    &scale.Response{Success: true, Service: "web", Replicas: 3},
		"response": &scale.Response{Service: "web", Replicas: 2, Message: "port 80 is taken"},
	} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		data = bytes.TrimSpace(data)
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := json.Unmarshal(data, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: decoded %+v, %v", name, got, err)
		}
		if again, err := json.Marshal(want); err != nil || !bytes.Equal(again, data) {
			t.Errorf("%s: encoded %s, %v", name, again, err)
		}
	}
}

func TestConstructors(t *testing.T) {
	t.Parallel()
	if r := scale.New("api", 5); r.Replicas != 5 || r.Assignments != nil || r.Spec != nil {
		t.Errorf("%+v", r)
	}
	spec := scale.Spec{Manifest: json.RawMessage(`{}`)}
	if r := scale.New("web", 3).WithSpec(spec); r.Replicas != 3 || !reflect.DeepEqual(r.Spec, &spec) {
		t.Errorf("%+v", r)
	}
	r := whole()
	c := r.Clone()
	if !reflect.DeepEqual(r, c) {
		t.Fatalf("cloned %+v", c)
	}
	c.Assignments[0].Indices[0], c.Spec.Manifest[0], c.Spec.Labels["tier"], c.Epoch.Term = 9, '[', "back", "1"
	c.Assignments[0].Role, c.Spec.Signature = "other", ""
	if !reflect.DeepEqual(r, whole()) {
		t.Errorf("the clone shares %+v", r)
	}
	if n := scale.New("web", 1).Clone(); !reflect.DeepEqual(n, scale.New("web", 1)) {
		t.Errorf("cloned %+v", n)
	}
}

func TestAssigned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r    scale.Request
		want string
	}{
		{scale.New("web", 0), "[]"},
		{scale.New("web", 3), "[{default [0 1 2]}]"},
		{
			scale.Request{Replicas: 9, Assignments: []scale.ScaleAssignment{{Role: "read", Indices: []uint32{7}}}},
			"[{read [7]}]",
		},
		{scale.Request{Replicas: 9, Assignments: []scale.ScaleAssignment{{Role: "read"}}}, "[{read []}]"},
		{scale.Request{Replicas: 2, Assignments: []scale.ScaleAssignment{}}, "[{default [0 1]}]"},
	} {
		if got := fmt.Sprint(c.r.Assigned()); got != c.want {
			t.Errorf("%+v: %s, want %s", c.r, got, c.want)
		}
	}
	if got := scale.New("web", 1<<32-1).Assigned(); len(got[0].Indices) != scale.MaxReplicas {
		t.Errorf("%d indices", len(got[0].Indices))
	}
}

func indices(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	return strings.Join(all, ",")
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, want string }{
		{`{"service":"web"}`, ""},
		{`{"service":"web","replicas":3,"colour":"red","assignments":[]}`, ""},
		// with assignments, the number is only information
		{`{"service":"web","replicas":3,"assignments":[{"role":"read","indices":[1],"zone":"a"}]}`, ""},
		{fmt.Sprintf(`{"service":"web","replicas":%d}`, scale.MaxReplicas), ""},
		{fmt.Sprintf(`{"service":"web","assignments":[{"role":"a","indices":[%s]}]}`, indices(scale.MaxReplicas)), ""},
		{`{"service":"web","assignments":[{"role":"a","indices":[9999,0]},{"role":"b","indices":[0]}]}`, ""},
		{`{"service":"web","replicas":1,"epoch":{"nonce":"n","rc_id":"r","term":"t"},"revision":1}`, ""},
		{`{"service":"web","revision":7}`, ""},
		// unknown names
		{`{"service":"web","Service":"other","REPLICAS":1001,"Assignments":"x","colour":1,"colour":2}`, ""},
		{`{"service":"web","assignments":null,"spec":null,"epoch":null}`, ""},
		{`{"service":"web","spec":{"manifest":{},"signature":null,"labels":null}}`, ""},
		{`{"service":"web","replicas":null}`, "replicas: null is not valid; allowed: a whole number"},
		{`{"service":"web","revision":null}`, "revision: null is not valid"},
		{`{"service":null}`, "service: null is not valid"},
		{`{"service":"web","assignments":[{"role":"a","indices":null}]}`, "assignments[0].indices: null is not valid"},
		{
			`{"service":"web","assignments":[{"role":"a","indices":[null]}]}`,
			"assignments[0].indices[0]: null is not valid",
		},
		{`{"service":"web","assignments":[null]}`, "assignments[0]: null is not valid"},
		{`{"service":"web","replicas":3,"replicas":1}`, "replicas: a second time is not valid; allowed: each key once"},
		{
			`{"service":"web","assignments":[{"role":"a"}],"assignments":[{"indices":[3]}]}`,
			"assignments: a second time is not valid",
		},
		{
			`{"service":"web","assignments":[{"role":"a","indices":[0],"indices":[1]}]}`,
			"assignments[0].indices: a second time is not valid",
		},
		{`{"service":"web","spec":{"manifest":{},"manifest":{}}}`, "spec.manifest: a second time is not valid"},
		{`{"service":"web","replicas":3.0}`, "replicas: 3.0 is not valid"},
		{`{"service":"web","replicas":3.5}`, "replicas: 3.5 is not valid"},
		{`{"service":"web","replicas":1e2}`, "replicas: 1e2 is not valid"},
		{`{"service":"web","replicas":"3"}`, `replicas: "3" is not valid`},
		{`{}`, "service: missing"},
		{`{"service":"Web"}`, `service: "Web" is not valid; allowed: 1 to 57 lower-case letters`},
		{`{"service":"` + strings.Repeat("w", 58) + `"}`, `allowed: 1 to 57 lower-case letters`},
		{`{"service":"` + strings.Repeat("w", 63) +
			`","replicas":1,"epoch":{"nonce":"n","rc_id":"r","term":"t"},"revision":1}`, ""},
		{`{"service":"web","replicas":-1}`, "-1 is not valid"},
		{`{"service":"web","replicas":1001}`, "replicas: 1001 is not valid; allowed: 0 to 1000"},
		{`{"service":"web","replicas":4294967296}`, "replicas: 4294967296 is not valid"},
		{`{"service":"web","assignments":[{"role":"","indices":[0]}]}`, "assignments[0].role"},
		{
			`{"service":"web","assignments":[{"role":"a","indices":[0]},{"role":"a","indices":[1]}]}`,
			`assignments[1].role: "a" is not valid`,
		},
		{
			`{"service":"web","assignments":[{"role":"a","indices":[0,1,0]}]}`,
			"assignments[0].indices[2]: 0 is not valid",
		},
		{
			`{"service":"web","assignments":[{"role":"a","indices":[10000]}]}`,
			"assignments[0].indices[0]: 10000 is not valid; allowed: 0 to 9999",
		},
		{`{"service":"web","assignments":[{"role":"a","indices":[-1]}]}`, "-1 is not valid"},
		{
			fmt.Sprintf(`{"service":"web","assignments":[{"role":"a","indices":[%s]},{"role":"b","indices":[0]}]}`,
				indices(scale.MaxReplicas)),
			"assignments: 1001 is not valid; allowed: 0 to 1000 indices in all",
		},
		{`{"service":"web","spec":{}}`, "spec.manifest: missing"},
		{`{"service":"web","spec":{"manifest":"web"}}`, "spec.manifest"},
		{`{"service":"web","epoch":{"nonce":"n","rc_id":"r"},"revision":1}`, "epoch.term"},
		{
			`{"service":"web","epoch":{"nonce":"n","rc_id":"` + strings.Repeat("r", 257) +
				`","term":"t"},"revision":1}`,
			"epoch.rc_id",
		},
		{
			`{"service":"web","epoch":{"nonce":"n","rc_id":"r","term":"t"}}`,
			"revision: 0 is not valid; allowed: 1 or more, with an epoch",
		},
		{`{"service":"web","revision":-1}`, "revision: -1 is not valid"},
		{`{"service":"web","replicas":3`, "cut off"},
		{``, "cut off"},
		{`{"service":"web"} {}`, "something follows the first document"},
		{`[]`, "a map with the fields"},
		{`{"service":"` + strings.Repeat("w", scale.MaxBytes) + `"}`, "longer than 1048576 bytes"},
	} {
		r, err := scale.Decode(strings.NewReader(c.body))
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.120s: %v, want %q", c.body, err, c.want)
		case c.want == "" && strings.Trim(r.Service, "w") != "" && r.Service != "web":
			t.Errorf("%.120s: %+v", c.body, r)
		}
	}
}

// An assignment without indices is written in the form that other languages read.
func TestNoIndicesAreAnEmptyList(t *testing.T) {
	t.Parallel()
	read, err := scale.Decode(strings.NewReader(`{"service":"db","assignments":[{"role":"read"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []scale.Request{read, scale.NewWithAssignments("db", []scale.ScaleAssignment{{Role: "read"}})} {
		if data, err := json.Marshal(r); err != nil || !strings.Contains(string(data), `"indices":[]`) {
			t.Errorf("%s, %v", data, err)
		}
	}
}

// Input from the network is refused, or it has each field once and can be sent on unchanged.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"minimal", "assignments", "none", "whole", "response"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, text := range []string{
		`{"service":"web","replicas":null}`, `{"service":"web","replicas":3,"REPLICAS":0}`,
		`{"service":"web","replicas":3,"replicas":1}`,
		`{"service":"db","assignments":[{"role":"read"}]}`,
		`{"service":"db","assignments":[{"role":"read","indices":[null]}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := scale.Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		if said := values(t, data, "replicas"); len(said) > 1 ||
			len(said) == 1 && said[0] != json.Number(fmt.Sprint(r.Replicas)) || len(said) == 0 && r.Replicas != 0 {
			t.Fatalf("%v was understood as %d", said, r.Replicas)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("encode %+v: %v", r, err)
		}
		r2, err := scale.Decode(bytes.NewReader(again))
		if err != nil {
			t.Fatalf("decode %s: %v", again, err)
		}
		if third, err := json.Marshal(r2); err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%s became %s, %v", again, third, err)
		}
		if bytes.Contains(again, []byte(`"indices":null`)) && r.Spec == nil {
			t.Fatalf("%s has no list of indices", again)
		}
	})
}

// values returns all values that a document has under one key, in their order.
func values(t *testing.T, data []byte, key string) (all []any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		name, err := dec.Token()
		var value any
		if err = errors.Join(err, dec.Decode(&value)); err != nil {
			t.Fatal(err)
		}
		if name == key {
			all = append(all, value)
		}
	}
	return all
}
