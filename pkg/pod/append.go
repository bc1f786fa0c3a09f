package pod

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// AppendJSON appends the placement as encoding/json writes it. One that is out of the ordinary is left to that.
func (p *Placement) AppendJSON(b []byte) []byte {
	if len(p.Ghosts)+len(p.Avoid)+len(p.MayRun) > 0 || p.StoppingSince != nil || p.LostSince != nil || p.UnmanagedSince != nil ||
		p.DeadIndex != 0 || p.AdoptedAtGeneration != 0 || p.Switching || p.Epoch != "" {
		data, err := json.Marshal(p)
		if err != nil {
			panic(fmt.Sprintf("encode placement %s: %v", p.Identity, err))
		}
		return append(b, data...)
	}
	b = p.Identity.appendFields(append(b, '{'))
	b = field.AppendText(append(b, `,"node":`...), p.Node)
	b = field.AppendText(append(b, `,"pod_id":`...), p.PodID)
	b = field.AppendMap(append(b, `,"labels":`...), p.Labels, field.AppendText)
	if len(p.OwnLabels) > 0 {
		b = field.AppendMap(append(b, `,"own_labels":`...), p.OwnLabels, field.AppendText)
	}
	b = field.AppendText(append(b, `,"digest":`...), p.Digest)
	b = appendPorts(b, p.Ports)
	b = field.AppendText(append(b, `,"run_state":`...), string(p.RunState))
	b = strconv.AppendInt(append(b, `,"revision":`...), p.Revision, 10)
	b = appendReplicas(appendStandby(b, p.Standby), p.Replicas)
	b = field.AppendTime(append(b, `,"changed_at":`...), p.ChangedAt)
	return append(b, '}')
}

// AppendJSON appends the intent as encoding/json writes it.
func (in *Intent) AppendJSON(b []byte) []byte {
	b = in.Identity.appendFields(append(b, '{'))
	b = field.AppendText(append(b, `,"pod_id":`...), in.PodID)
	b = field.AppendText(append(b, `,"digest":`...), in.Digest)
	if len(in.Labels) > 0 {
		b = field.AppendMap(append(b, `,"labels":`...), in.Labels, field.AppendText)
	}
	b = appendPorts(b, in.Ports)
	b = field.AppendText(append(b, `,"state":`...), string(in.State))
	b = strconv.AppendInt(append(b, `,"revision":`...), in.Revision, 10)
	b = appendReplicas(appendStandby(b, in.Standby), in.Replicas)
	if in.Epoch != "" {
		b = field.AppendText(append(b, `,"epoch":`...), in.Epoch)
	}
	return append(b, '}')
}

// AppendTo appends the identity as encoding/json writes it. Records that embed an identity have this method too, which is why it is called
// otherwise than theirs.
func (id Identity) AppendTo(b []byte) []byte { return append(id.appendFields(append(b, '{')), '}') }

func (id Identity) appendFields(b []byte) []byte {
	b = field.AppendText(append(b, `"rc_id":`...), id.RCID)
	b = field.AppendText(append(b, `,"role":`...), id.Role)
	return field.AppendInt(append(b, `,"index":`...), id.Index)
}

func appendPorts(b []byte, ports map[string]int) []byte {
	if len(ports) == 0 {
		return b
	}
	return field.AppendMap(append(b, `,"ports":`...), ports, field.AppendInt)
}

func appendReplicas(b []byte, replicas int) []byte {
	if replicas == 0 {
		return b
	}
	return field.AppendInt(append(b, `,"replicas":`...), replicas)
}

func appendStandby(b []byte, standby bool) []byte {
	if !standby {
		return b
	}
	return append(b, `,"standby":true`...)
}
