package feature

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/semver"

	"github.com/rcfarm/rcfarm/pkg/field"
)

var known = Table{
	{Name: "late", Since: "0.10.0", What: "the last"},
	{Name: "early", Since: "0.2.0", What: "the first"},
	{Name: "middle", Since: "0.3.0", What: "the second"},
}

func TestTable(t *testing.T) {
	t.Parallel()
	if got := known.Newest(); got != "0.10.0" {
		t.Errorf("the newest is %s", got)
	}
	if got := (Table{}).Newest(); got != Oldest {
		t.Errorf("without a feature the newest is %s", got)
	}
	for gate, want := range map[string]string{
		Oldest: "early middle late", "0.1.9": "early middle late", "0.2.0": "middle late", "0.3.0-rc.1": "middle late",
		"0.9.0": "late", "0.10.0": "", "1.0.0": "",
	} {
		var names []string
		for _, f := range known.Waiting(gate) {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s waits for a gate of %s, want %s", got, gate, want)
		}
	}
	if known[0].Name != "late" {
		t.Error("the table was sorted")
	}
	if f := known.Named("middle"); f == nil || f.Since != "0.3.0" || known.Named("none") != nil {
		t.Errorf("middle is %+v", f)
	}
}

// Each feature of this program has its own name, and the version of a release.
func TestKnownFeatures(t *testing.T) {
	t.Parallel()
	for i, f := range Known {
		if f.Name == "" || f.What == "" || !IsVersion(f.Since) ||
			semver.Prerelease("v"+f.Since)+semver.Build("v"+f.Since) != "" || !After(f.Since, Oldest) {
			t.Errorf("feature %d is %+v", i, f)
		}
		if slices.ContainsFunc(Known[:i], func(other Feature) bool { return other.Name == f.Name }) {
			t.Errorf("there are two features %s", f.Name)
		}
	}
}

func TestEmulated(t *testing.T) {
	t.Parallel()
	for build, want := range map[string]string{
		"0.1.0": "0.1.0", "0.2.0": "0.2.0", "0.2.0-rc.1": "0.2.0", "0.9.0+g1d26525": "0.9.0",
		"0.10.0": "0.10.0", "0.10.1": "0.10.0", "2.0.0": "0.10.0",
		"0.0.0-dev": "0.10.0", "0.0.0-dev+g1d26525.dirty": "0.10.0", "0.2.1-dev.5+g1d26525": "0.10.0",
		"0.2.0-rc.1.dev.12": "0.10.0",
		"0.2.0-device":      "0.2.0",
		"":                  "0.10.0", "nonsense": "0.10.0",
	} {
		if got := known.Emulated(build); got != want {
			t.Errorf("a build of %q emulates %s, want %s", build, got, want)
		}
	}
}

func TestCheckEmulation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version, build string
		good           bool
	}{
		{"0.2.0", "0.2.0", true},
		{"0.1.0", "0.2.0", true},
		{"0.2.1", "0.2.0", false},
		{"0.10.0", "2.0.0", true},
		{"0.10.1", "2.0.0", false},
		{"0.10.0", "0.0.0-dev", true},
		{"v0.1.0", "0.2.0", false},
		{"0.1", "0.2.0", false},
		{"", "0.2.0", false},
	} {
		var errs field.Errors
		known.CheckEmulation(&errs, "emulation-version", c.version, c.build)
		if (len(errs) == 0) != c.good {
			t.Errorf("%q with a build of %s: %v", c.version, c.build, errs)
		}
		if !c.good &&
			(errs[0].Field != "emulation-version" ||
				!strings.Contains(errs[0].Allowed, " "+known.Emulated(c.build)+",")) {
			t.Errorf("%q: %v", c.version, errs)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1+x": "1.2.3-rc.1+x", "0.0.0": Oldest, "0.0.0-dev": Oldest,
		"": Oldest, "1.2": Oldest, "v1.2.3": Oldest, "1.2.3 ": Oldest, "1.2.3-" +
			strings.Repeat("x", maxVersion): Oldest,
		"1.2.3-" + strings.Repeat("x", maxVersion-6): "1.2.3-" + strings.Repeat("x", maxVersion-6),
	} {
		if got := Counted(text); got != want {
			t.Errorf("%q counts as %q, want %q", text, got, want)
		}
	}
	if !After("1.10.0", "1.9.0") || After("1.9.0", "1.10.0") || After("1.0.0", "1.0.0") {
		t.Error("numbers are not compared as numbers")
	}
	for _, c := range [][3]string{
		{"0.0.0-dev", "0.10.0", "0.0.0-dev"},
		{"1.2.0", "1.1.0", "1.1.0"},
		{"1.2.0", "1.2.0", "1.2.0"},
		{"1.2.0-rc.1", "1.2.0", "1.2.0-rc.1"},
	} {
		if got := Candidate(c[0], c[1]); got != c[2] {
			t.Errorf("a build of %s that emulates %s says %s in elections, want %s", c[0], c[1], got, c[2])
		}
	}
}

func farmOf(name, emulates string) Writer {
	return Writer{Kind: "farm", Name: name, Version: emulates, Emulates: emulates}
}

func TestNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gate     string
		emulated []string
		want     string
	}{
		"nobody lives":        {"0.2.0", nil, "0.2.0"},
		"one":                 {Oldest, []string{"0.3.0"}, "0.3.0"},
		"the oldest counts":   {"0.1.0", []string{"0.10.0", "0.2.0", "0.9.0"}, "0.2.0"},
		"the first is oldest": {"0.1.0", []string{"0.2.0", "0.9.0"}, "0.2.0"},
		"it never goes back":  {"0.3.0", []string{"0.2.0", "0.9.0"}, "0.3.0"},
		"one says nothing":    {"0.1.0", []string{"0.9.0", ""}, "0.1.0"},
		"the first does not":  {Oldest, []string{"", "0.9.0"}, Oldest},
		"no version":          {Oldest, []string{"0.9.0", "nine"}, Oldest},
		"a damaged gate":      {"", []string{"0.9.0"}, "0.9.0"},
		"a damaged gate, old": {"?", []string{""}, Oldest},
	} {
		var living []Writer
		for i, v := range c.emulated {
			living = append(living, farmOf(fmt.Sprint(i), v))
		}
		if got := Next(c.gate, living); got != c.want {
			t.Errorf("%s: from %s to %s, want %s", name, c.gate, got, c.want)
		}
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	living := []Writer{
		farmOf("b", "0.2.0"), farmOf("c", "0.3.0"),
		{Kind: "node", Name: "a", Emulates: "0.2.0"},
		{Kind: "node", Name: "z"},
		farmOf("a", "0.2.0"),
	}
	if got, want := Names(Below("0.3.0", living)), "node z (version not known, from before the gate), farm a "+
		"(version 0.2.0), farm b (version 0.2.0), node a (version not known, emulates 0.2.0)"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := Below("0.2.0", living); len(got) != 1 || got[0].Name != "z" {
		t.Errorf("below 0.2.0 are %v", got)
	}
	if living[0].Name != "b" {
		t.Error("what was given was sorted")
	}
	many := slices.Repeat([]Writer{farmOf("x", "0.1.0")}, maxNamed+2)
	if got := Names(many); !strings.HasSuffix(got, " and 2 more") || strings.Count(got, "farm x") != maxNamed {
		t.Error(got)
	}
	if got := Names(many[:maxNamed]); strings.Contains(got, "more") {
		t.Error(got)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	closed := &ClosedError{Need: Need{known[1], "spread"}, Gate: "0.1.0"}
	if got := closed.Error(); got != "spread needs version 0.2.0 (feature early), and the cluster's gate is 0.1.0; "+
		"nothing was written; the leader of the farms raises it once all farms and nodes that live are of "+
		"that version" {
		t.Error(got)
	}
	if got := (&ClosedError{Need: Need{Feature: known[1]}, Gate: "0.1.0"}).Error(); !strings.HasPrefix(got,
		"the record needs") {
		t.Error(got)
	}
	closed.Behind = []Writer{farmOf("f1", "0.1.0"), {Kind: "node", Name: "n1", Version: "0.3.0", Emulates: "0.1.0"}}
	if got := closed.Error(); !strings.HasSuffix(got,
		"held back by farm f1 (version 0.1.0), node n1 (version 0.3.0, emulates 0.1.0): upgrade that") {
		t.Error(got)
	}
	if got := (&BehindError{Emulates: "0.1.0", Gate: "0.2.0"}).Error(); !strings.Contains(got, "version 0.1.0") ||
		!strings.Contains(got, "upgrade it to 0.2.0") {
		t.Error(got)
	}
}

type record struct {
	Plain  string            `json:"plain"`
	Labels map[string]string `json:"labels"`
	At     time.Time         `json:"at"`
	Early  string            `json:"early" feature:"early"`
	Count  *int              `json:"count" feature:"middle"`
	Parts  []part            `json:"parts"`
	ByName map[string]*part  `json:"by_name"`
	Next   *record           `json:"next"`
	Kind   *kind             `json:"kind"`
	Odd    string            `json:"odd" feature:"not in the table"`
	embedded
}

type embedded struct {
	Inner string `json:"inner" feature:"late"`
}

type part struct {
	Late bool `json:"late" feature:"late"`
}

type kind struct {
	_    struct{} `feature:"middle"`
	Text string   `json:"text"`
}

func TestNeedOf(t *testing.T) {
	t.Parallel()
	zero := 0
	for name, c := range map[string]struct {
		record any
		want   Need
	}{
		"nothing is set": {record{}, Need{}},
		"fields of all": {
			&record{Plain: "x", Labels: map[string]string{"a": "b"}, At: time.Now(), Odd: "x"},
			Need{},
		},
		"a text":            {record{Early: "x"}, Need{known[1], "early"}},
		"a pointer to zero": {record{Count: &zero}, Need{known[2], "count"}},
		"the newest": {
			record{Early: "x", Count: &zero, Parts: []part{{}, {Late: true}}},
			Need{known[0], "parts.late"},
		},
		"the newest comes last": {record{Early: "x", Kind: &kind{}}, Need{known[2], "kind"}},
		"the newest is first":   {record{Count: &zero, Next: &record{Early: "x"}}, Need{known[2], "count"}},
		"in a map":              {&record{ByName: map[string]*part{"a": {Late: true}}}, Need{known[0], "by_name.late"}},
		"in a map, not set":     {&record{ByName: map[string]*part{"a": {}, "b": nil}}, Need{}},
		"in another record":     {&record{Next: &record{Early: "x"}}, Need{known[1], "next.early"}},
		"embedded":              {record{embedded: embedded{Inner: "x"}}, Need{known[0], "inner"}},
		"a kind of records":     {&kind{}, Need{known[2], ""}},
		"a kind in a record":    {record{Kind: &kind{Text: "x"}}, Need{known[2], "kind"}},
		"no struct":             {[]part{{Late: true}}, Need{known[0], "late"}},
		"a nil pointer":         {(*record)(nil), Need{}},
		"nil":                   {nil, Need{}},
		"a number":              {7, Need{}},
	} {
		got := known.needOf(c.record)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if got.Zero() != (c.want == Need{}) {
			t.Errorf("%s: zero is %t", name, got.Zero())
		}
	}
	if need := (Need{Feature: known[1]}); need.Allowed("0.1.0") || !need.Allowed("0.2.0") || !need.Allowed("0.3.0") ||
		!(Need{}).Allowed(Oldest) {
		t.Error("a gate allows what is newer, or does not allow what is not")
	}
	if need := NeedOf(record{Early: "x"}); Known.Named("early") == nil && !need.Zero() {
		t.Errorf("%+v", need)
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	one := 1
	full := func() *record {
		return &record{
			Plain: "x", Early: "x", Count: &one, Parts: []part{{Late: true}}, Next: &record{Early: "y"}, Odd: "x",
			ByName: map[string]*part{"a": {Late: true}}, embedded: embedded{Inner: "x"},
		}
	}
	for gate, want := range map[string]string{
		"0.1.0":  "x  false false  x",
		"0.2.0":  "x x false false y x",
		"0.3.0":  "x x true false y x",
		"0.10.0": "x x true true y xx",
	} {
		r := full()
		known.without(gate, reflect.ValueOf(r))
		if got := fmt.Sprint(r.Plain, " ", r.Early, " ", r.Count != nil, " ", r.Parts[0].Late, " ", r.Next.Early, " ",
			r.Odd, r.Inner); got != want {
			t.Errorf("under %s it is %q, want %q", gate, got, want)
		}
		if need := known.needOf(r); !need.Allowed(gate) {
			t.Errorf("under %s it still needs %+v", gate, need)
		}
	}
	direct := record{}
	direct.ByName = map[string]*part{"a": {Late: true}}
	values := map[string]part{"a": {Late: true}}
	known.without("0.1.0", reflect.ValueOf(&values)) // values in a map cannot be changed
	if known.needOf(values).Zero() {
		t.Error("what is left needs nothing")
	}
	whole := kind{Text: "x"}
	if known.without("0.1.0", reflect.ValueOf(&whole)); whole.Text == "" || known.needOf(whole).Zero() {
		t.Error("a kind of record was taken out of itself")
	}
	r := full()
	if Without("0.1.0", r); r.Odd == "" {
		t.Error("what has no feature was taken out")
	}
}

func TestLookout(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	old, mid, late := []Writer{farmOf("a", "0.1.0")}, []Writer{farmOf("a", "0.2.0")}, []Writer{farmOf("a", "0.3.0")}
	l := &Lookout{}
	for i, step := range []struct {
		after  int // seconds
		gate   string
		living []Writer
		want   string
	}{
		{0, "0.1.0", old, ""},
		{60, "0.1.0", old, ""},
		{61, "0.1.0", late, ""},      // the wait begins
		{70, "0.1.0", late, ""},      // not long enough
		{71, "0.1.0", late, "0.3.0"}, // ten seconds later
		{72, "0.1.0", late, "0.3.0"}, // the write has failed
		{73, "0.3.0", late, ""},      // done
		{99, "0.3.0", old, ""},       // it never goes back
		{100, "0.1.0", mid, ""},      // the store went back: the wait begins
		{105, "0.1.0", late, ""},     // all allow more; first comes the version that they have allowed all the time
		{110, "0.1.0", late, "0.2.0"},
		{111, "0.2.0", late, ""}, // the wait begins again for the higher version
		{120, "0.2.0", late, ""},
		{121, "0.2.0", late, "0.3.0"},
		{122, "0.2.0", mid, ""}, // an older one came back in time
		{123, "0.2.0", late, ""},
		{133, "0.2.0", late, "0.3.0"},
		{200, "0.2.0", nil, ""}, // no writer is seen
		{201, "0.2.0", late, ""},
	} {
		if got := l.Raise(start.Add(time.Duration(step.after)*time.Second), step.gate, step.living,
			10*time.Second); got != step.want {
			t.Errorf("step %d, after %d s: %q, want %q", i, step.after, got, step.want)
		}
	}
}
