package ballot_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

func TestValidate(t *testing.T) {
	const version = `a version such as "1.19.0" or "1.20.0-rc.1", without a leading "v", of 128 bytes at the most`
	for _, tt := range []struct {
		name   string
		change func(*ballot.Record)
		want   string
	}{
		{"all is well", func(*ballot.Record) {}, ""},
		{
			"unstamped",
			func(r *ballot.Record) { r.BinaryVersion, r.EmulationVersion = ballot.Unstamped, ballot.Unstamped }, "",
		},
		{
			"build", func(r *ballot.Record) { r.BinaryVersion, r.EmulationVersion = "1.19.0-rc.1+5114f85", "1.18.0+x" },
			"",
		},
		{"lower emulation", func(r *ballot.Record) { r.EmulationVersion = "1.2.0" }, ""},
		{"the same with another build", func(r *ballot.Record) { r.EmulationVersion = "1.19.0+x" }, ""},
		{
			"no emulation where none is needed",
			func(r *ballot.Record) { r.EmulationVersion, r.Strategy = "", ballot.Newest }, "",
		},
		{"a third party's strategy", func(r *ballot.Record) { r.Strategy = "example.com/Mine" }, ""},
		{"no lease", func(r *ballot.Record) { r.LeaseName = "" }, "lease_name: missing; allowed: "},
		{"odd lease", func(r *ballot.Record) { r.LeaseName = "a/b" }, `lease_name: "a/b" is not valid; allowed: `},
		{"no version", func(r *ballot.Record) { r.BinaryVersion = "" }, "binary_version: missing; allowed: " + version},
		{
			"leading v", func(r *ballot.Record) { r.BinaryVersion = "v1.19.0" },
			`binary_version: "v1.19.0" is not valid; allowed: ` + version,
		},
		{
			"two numbers", func(r *ballot.Record) { r.BinaryVersion = "1.19" },
			`binary_version: "1.19" is not valid; allowed: ` + version,
		},
		{
			"one number", func(r *ballot.Record) { r.BinaryVersion = "1" },
			`binary_version: "1" is not valid; allowed: ` + version,
		},
		{
			"leading zero", func(r *ballot.Record) { r.BinaryVersion = "1.19.00" },
			`binary_version: "1.19.00" is not valid; allowed: ` + version,
		},
		{
			"two numbers and a build", func(r *ballot.Record) { r.BinaryVersion = "1.19+b" },
			`binary_version: "1.19+b" is not valid; allowed: ` + version,
		},
		{
			"words", func(r *ballot.Record) { r.BinaryVersion = "latest" },
			`binary_version: "latest" is not valid; allowed: ` + version,
		},
		{"long", func(r *ballot.Record) { r.BinaryVersion = "1.19.0-" + strings.Repeat("x", 122) }, "binary_version: "},
		{
			"odd emulation", func(r *ballot.Record) { r.EmulationVersion = "1.x" },
			`emulation_version: "1.x" is not valid; allowed: ` + version,
		},
		{
			"higher emulation", func(r *ballot.Record) { r.EmulationVersion = "1.20.0" },
			`emulation_version: "1.20.0" is not valid; allowed: the binary_version, 1.19.0, or an earlier one`,
		},
		{
			"no emulation", func(r *ballot.Record) { r.EmulationVersion = "" },
			"emulation_version: missing; allowed: " + version + "; the strategy OldestEmulationVersion needs it",
		},
		{
			"no strategy", func(r *ballot.Record) { r.Strategy = "" },
			"strategy: missing; allowed: OldestEmulationVersion, Newest or Pinned; or ",
		},
		{
			"odd strategy", func(r *ballot.Record) { r.Strategy = "my strategy" },
			`strategy: "my strategy" is not valid; allowed: OldestEmulationVersion, `,
		},
		{
			"emulation of an odd version",
			func(r *ballot.Record) { r.BinaryVersion, r.EmulationVersion = "1", "2.0.0" },
			`binary_version: "1" is not valid; allowed: ` + version,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := of("a", "1.19", 1).Record
			tt.change(&r)
			err := r.Validate()
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	longest := of("a", "1.19", 1).Record
	longest.EmulationVersion = "1.18.0"
	longest.BinaryVersion = "1.19.0-" + strings.Repeat("x", 121)
	if err := longest.Validate(); err != nil {
		t.Error(err)
	}
}

func at(s string) *ballot.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return &ballot.Time{Time: t}
}

func TestRecordAsWritten(t *testing.T) {
	r := of("a", "1.19/1.18", 1).Record
	for _, tt := range []struct {
		change func()
		want   string
	}{
		{
			func() {},
			`{"lease_name":"janitor","binary_version":"1.19.0","emulation_version":"1.18.0","strategy":"OldestEmulationVersion"}`,
		},
		{func() {
			r.PingTime, r.RenewTime, r.Round = at("2026-11-23T10:00:00.1234567+02:00"), at("2026-11-23T08:00:01Z"), "n"
		}, `{"lease_name":"janitor","binary_version":"1.19.0","emulation_version":"1.18.0",` +
			`"strategy":"OldestEmulationVersion",` +
			`"ping_time":"2026-11-23T08:00:00.123456Z","renew_time":"2026-11-23T08:00:01.000000Z","round":"n"}`},
	} {
		tt.change()
		data, err := json.Marshal(r)
		if err != nil || string(data) != tt.want {
			t.Errorf("got %s, %v\nwant %s", data, err, tt.want)
		}
		back := ballot.DecodeCandidate("a", data, 7, "s")
		if back.Err != nil || back.ID != "a" || back.Created != 7 || back.Session != "s" ||
			back.Record.Round != r.Round || (back.Record.RenewTime == nil) != (r.RenewTime == nil) {
			t.Errorf("%s is read as %+v", data, back)
		}
	}
}

func TestACandidatesLeaseNeverChanges(t *testing.T) {
	bare := ballot.Record{LeaseName: lease, BinaryVersion: "1.20.0", Strategy: ballot.Pinned}
	full := of("a", "1.19", 1).Record
	if err := errors.Join(full.MayBecome(&bare), bare.MayBecome(&full),
		new(ballot.Record).MayBecome(&full)); err != nil {
		t.Error(err)
	}
	other := bare
	other.LeaseName = "other"
	err := full.MayBecome(&other)
	if err == nil ||
		err.Error() != `lease_name: "other" is not valid; allowed: "janitor": a candidate's lease never changes` {
		t.Error(err)
	}
}

func TestDecodeCandidate(t *testing.T) {
	for _, tt := range []struct{ id, value, want string }{
		{"a", `{`, "the record cannot be read: "},
		{"a", `{"binary_version": 1}`, "the record cannot be read: "},
		{"a/b", `{}`, `id: "a/b" is not valid`},
		{"a", `{"lease_name": "janitor", "future": true}`, ""},
	} {
		c := ballot.DecodeCandidate(tt.id, []byte(tt.value), 1, "s")
		if (c.Err == nil) != (tt.want == "") || c.Err != nil && !strings.HasPrefix(c.Err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.value, c.Err, tt.want)
		}
	}
	if c := ballot.DecodeCandidate("a", []byte(`{"lease_name": "x", "strategy": 5}`), 1,
		"s"); c.Record != (ballot.Record{}) {
		t.Errorf("half a record is left: %+v", c)
	}
}
