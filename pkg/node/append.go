package node

import (
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// AppendJSON appends the reservation as encoding/json writes it.
func (r *Reservation) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	if r.Ineligible {
		b = append(b, `"closed":true,`...)
	}
	if r.Labels != (LabelVersions{}) {
		b = append(b, `"labels":{`...)
		if r.Labels.Own != "" {
			b = field.AppendText(append(b, `"own":`...), r.Labels.Own)
		}
		if r.Labels.Own != "" && r.Labels.Operators != "" {
			b = append(b, ',')
		}
		if r.Labels.Operators != "" {
			b = field.AppendText(append(b, `"operators":`...), r.Labels.Operators)
		}
		b = append(b, "},"...)
	}
	b = field.AppendMap(append(b, `"holders":`...), r.Claims, appendClaim)
	return append(b, '}')
}

func appendClaim(b []byte, h Claim) []byte {
	b = h.Pod.AppendTo(append(b, `{"pod":`...))
	for i, port := range h.Ports {
		if i == 0 {
			b = append(b, `,"ports":[`...)
		} else {
			b = append(b, ',')
		}
		b = field.AppendInt(b, port)
	}
	if len(h.Ports) > 0 {
		b = append(b, ']')
	}
	if h.CPU != 0 {
		b = strconv.AppendInt(append(b, `,"cpu":`...), h.CPU, 10)
	}
	if h.Memory != 0 {
		b = strconv.AppendInt(append(b, `,"memory":`...), h.Memory, 10)
	}
	return append(b, '}')
}
