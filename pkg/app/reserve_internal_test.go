package app

import (
	"runtime"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func TestCaps(t *testing.T) {
	t.Parallel()
	cores := int64(runtime.NumCPU()) * 1000
	for _, tt := range []struct {
		cfg  PreparerConfig
		cpu  int64
		want string // part of the mistake; empty: none
	}{
		{PreparerConfig{}, 0, ""},
		{PreparerConfig{ReserveCPU: 250, ReserveMemory: 1 << 20}, cores - 250, ""},
		{PreparerConfig{ReserveCPU: cores}, 0, "reserve-cpu: "},
		{PreparerConfig{ReserveCPU: -1}, 0, "reserve-cpu: -1 is not valid; allowed: thousandths of a core: zero (pods may take all), or less than the "},
		{PreparerConfig{ReserveMemory: 1 << 60}, 0, "reserve-memory: "},
		{PreparerConfig{ReserveMemory: 1, Isolation: IsolationOff}, 0, `isolation: "off" is not valid; allowed: auto or on, with --reserve-cpu`},
	} {
		var errs field.Errors
		cpu, memory := tt.cfg.caps(&errs)
		err := errs.Err()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || cpu != tt.cpu {
			t.Errorf("%+v: %d, %v; want %d, %q", tt.cfg, cpu, err, tt.cpu, tt.want)
		}
		if bounded := memory > 0; err == nil && bounded != (tt.cfg.ReserveMemory > 0) {
			t.Errorf("%+v: %d bytes", tt.cfg, memory)
		}
	}
}
