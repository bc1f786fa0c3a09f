package rcctl

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const placeAllowed = "one YAML or JSON document that describes a replication controller or a service"

func placeCommand() *cli.Command {
	return leaf("place --explain -f FILE [-o table|wide|json|yaml]",
		"show for every machine whether it would take pods of a document, and why not",
		`Applies the farms' rule and ranking to the machines as they are now. It writes nothing; farms place the pods
of documents that rcctl apply and rcctl deploy have written. The document is that of a controller or of a service. Pods
of a controller with the same name are considered, as a farm does.

RANK is the order in which machines are taken for the next pod. With spread, machines in the group with the fewest of
the controller's pods come first; then those that its affinity prefers (SCORE, the sum of the weights that match); then
those with the fewest of its pods (PODS); then those that would be least full with one more (LOAD, by their scarcest
resource). With placing: pack, those with the most of its pods, and the fullest, come first. A farm looks at about
three machines for each pod, takes the best of these, and breaks ties by chance. GETS is how many of the missing pods a
machine would get.

If replica groups have resources, spread, affinity or placing of their own, each group has its own table, with the pods
of the groups before it placed. Pods that others place meanwhile, and a scheduler of your own, are not considered.

Examples:
  rcctl place --explain -f rc.yaml
  rcctl place --explain -f rc.yaml -o wide        every machine, one on a line, and which port one lacks
  rcctl place --explain -f service.yaml -o json | jq '.nodes[] | select(.reason == "ports") | .name'`,
		onConn(readPlace, runPlace), toggle("explain", "required: this command places nothing"), fileFlag(),
		wideOutputFlag(),
	)
}

func readPlace(c *cli.Context) (*rc.Spec, error) {
	if !c.Bool("explain") {
		return nil, usagef(c,
			"--explain: missing; required, because this command places nothing; to have pods placed: "+
				"rcctl apply")
	}
	return readInput(c, func(source string, data []byte) (*rc.Spec, error) {
		converted, err := document.ToJSON(data, placeAllowed)
		if err != nil {
			return nil, err
		}
		spec, err := decodeSpec(c, source, converted)
		if err == nil {
			return spec, nil
		}
		service, other := record.Decode(converted)
		if other != nil {
			return nil, err
		}
		return &rc.Spec{
			Name: service.Name, NodeSelector: service.NodeSelector, Replicas: service.Replicas,
			ReplicaGroups: service.ReplicaGroups,
			MaxPerNode:    service.MaxPerNode, Spread: service.Spread, Affinity: service.Affinity,
			Placing: service.Placing, Mode: service.Mode, Pod: service.Pod,
		}, nil
	})
}

func runPlace(s *conn, spec *rc.Spec) error {
	placements, corrupt, err := s.placementsOf(spec.Name)
	if err != nil {
		return err
	}
	state, bad, err := deploy.State(s.Context, s.Store)
	if err != nil {
		return err
	}
	view, err := inspect.Place(spec, placements, state)
	if err != nil {
		return err
	}
	return s.print(view, append(corrupt, bad...), func(w io.Writer) error {
		return writePlacing(w, &view, s.String("output") == wideFormat)
	})
}

// placementsOf returns the pods of the controller with this name, or of the revision in effect of the service.
func (s *conn) placementsOf(name string) ([]pod.Placement, []error, error) {
	id := ""
	if found, err := s.FindRC(s.Context, name); err == nil {
		id = found.Value.ID
	} else if !isMissing(err) {
		return nil, nil, err
	}
	if svc, err := s.Deployments.Service(s.Context, name); err == nil {
		id = svc.Deployed.RC
	} else if !isMissing(err) {
		return nil, nil, err
	}
	if id == "" {
		return nil, nil, nil
	}
	recs, corrupt, err := s.Pods.List(s.Context, store.Default, id)
	return values(recs), corrupt, err
}

const fewNodes = 20

func writePlacing(w io.Writer, v *inspect.Placing, wide bool) error {
	if len(v.Groups) == 0 {
		return writeGroupPlacing(w, clean(v.Name), &v.GroupPlacing, wide)
	}
	fmt.Fprintf(w, "%s: %s, %d placed.\n", clean(v.Name), field.Count(v.Replicas, "replica"), v.Placed)
	for i := range v.Groups {
		g := &v.Groups[i]
		fmt.Fprintln(w)
		if err := writeGroupPlacing(w, clean(v.Name+"."+g.Role), g, wide); err != nil {
			return err
		}
	}
	return nil
}

func writeGroupPlacing(w io.Writer, name string, v *inspect.GroupPlacing, wide bool) error {
	fmt.Fprintf(w, "%s: %s, %d placed. Each takes %s.\n",
		name, field.Count(v.Replicas, "replica"), v.Placed, takesText(&v.Takes))
	if preferences := preferencesText(v); preferences != "" {
		fmt.Fprintf(w, "Its nodes: %s.\n", clean(preferences))
	}
	if v.Placed < v.Replicas {
		fmt.Fprintf(w, "Nodes have capacity for %d of the %d that are missing.\n", v.Found, v.Replicas-v.Placed)
	}
	takes := v.Ranked()
	show := takes[:min(len(takes), fewNodes)]
	if wide {
		show = v.Nodes
	}
	if len(show) > 0 {
		fmt.Fprintln(w)
		if err := placingTable(v, show, wide).write(w, coloured(w)); err != nil {
			return err
		}
	}
	if more := len(takes) - len(show); more > 0 {
		fmt.Fprintf(w, "%s more would take a pod; -o wide has all.\n", field.Count(more, "node"))
	}
	if len(v.Out) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%d of %s take no pod:\n", len(v.Nodes)-len(takes), field.Count(len(v.Nodes), "node"))
	tb := columns("NODES", "REASON", "WHICH")
	for _, reason := range slices.Sorted(maps.Keys(v.Out)) {
		tb.add(fmt.Sprint(v.Out[reason]), string(reason), field.Few(v.Refusing(reason), 3, ", "))
	}
	return tb.write(w, false)
}

func preferencesText(v *inspect.GroupPlacing) string {
	var parts []string
	if v.Spread != "" {
		text := "spread over " + v.Spread
		if v.Skew > 0 {
			text += fmt.Sprintf(", skew %d required", v.Skew)
		}
		parts = append(parts, text)
	}
	for _, p := range v.Affinity {
		parts = append(parts, fmt.Sprintf("%s first (weight %d)", p.Selector, p.Weight))
	}
	if v.Pack {
		parts = append(parts, "packed")
	}
	return strings.Join(parts, "; ")
}

func placingTable(v *inspect.GroupPlacing, nodes []inspect.PlacingNode, wide bool) *table {
	tb := columns("RANK", "NODE", "PODS", "GETS", "LOAD", "SLOTS", "CPU", "MEMORY")
	if v.Spread != "" {
		tb.header = slices.Insert(tb.header, 2, "GROUP")
	}
	scored := slices.Index(tb.header, "LOAD")
	if len(v.Affinity) > 0 {
		tb.header = slices.Insert(tb.header, scored, "SCORE")
	}
	if wide {
		tb.header = append(tb.header, "PORTS", "REASON")
	}
	for i := range nodes {
		n := &nodes[i]
		rank := ""
		if n.Rank > 0 {
			rank = fmt.Sprint(n.Rank)
		}
		row := []string{
			rank, n.Name, fmt.Sprint(n.Pods), fmt.Sprint(n.Gets), fmt.Sprintf("%d%%", n.Load*100/scheduler.Whole),
			ofText(int64(n.Used.Slots), int64(n.Capacity.Slots), plainAmount),
			ofText(n.Used.CPU, n.Capacity.CPU, cpuText), ofText(n.Used.Memory, n.Capacity.Memory, memoryText),
		}
		if v.Spread != "" {
			row = slices.Insert(row, 2, n.Group)
		}
		if len(v.Affinity) > 0 {
			row = slices.Insert(row, scored, fmt.Sprint(n.Score))
		}
		if wide {
			row = append(row, ofText(int64(n.Used.Ports), int64(n.Capacity.Ports), plainAmount), reasonText(n))
		}
		tb.rows = append(tb.rows, row)
	}
	return tb
}

func reasonText(n *inspect.PlacingNode) string {
	if n.Lacks == "" {
		return string(n.Reason)
	}
	return string(n.Reason) + ": " + n.Lacks
}

func takesText(t *inspect.PodTakes) string {
	parts := []string{"a slot"}
	if t.CPU > 0 {
		parts = append(parts, cpuText(t.CPU)+" CPU")
	}
	if t.Memory > 0 {
		parts = append(parts, memoryText(t.Memory)+" memory")
	}
	for _, port := range t.Ports {
		parts = append(parts, fmt.Sprintf("port %d", port))
	}
	if n := len(t.DynamicPorts); n > 0 {
		parts = append(parts, field.Count(n, "dynamic port"))
	}
	return strings.Join(parts, ", ")
}

func ofText(used, limit int64, text func(int64) string) string {
	if limit == 0 {
		return text(used)
	}
	return text(used) + "/" + text(limit)
}

func plainAmount(n int64) string { return fmt.Sprint(n) }

func cpuText(millicores int64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%d.%03d", millicores/1000, millicores%1000), "0"), ".")
}

// memoryText uses the largest unit that fits.
func memoryText(bytes int64) string {
	const kib = 1024
	n, unit := float64(bytes), 0
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	for n >= kib && unit < len(units)-1 {
		n, unit = n/kib, unit+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + units[unit]
}
