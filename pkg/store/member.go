package store

// Member is a living farm, at farms/<farm-id>. The key is held, and deleted with, the farm's deleting session.
type Member struct {
	ID               string `json:"id"`
	Incarnation      string `json:"incarnation"`
	Version          string `json:"version"`
	EmulationVersion string `json:"emulation_version"`
	Address          string `json:"address,omitempty"`     // of its debug server
	RCSelector       string `json:"rc_selector,omitempty"` // of the controllers that it works on
	RCID             string `json:"rc_id,omitempty"`       // the only controller that it works on, in place of those that a selector selects; empty: it is a farm
}
