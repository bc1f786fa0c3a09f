package checker

// The commands of Consul's Raft log that the replay needs, by their first byte.
const (
	typeRegister   = 0
	typeDeregister = 1
	typeKVS        = 2
	typeSession    = 3
	typeTxn        = 8
	ignorable      = 128 // flag: older servers may ignore the command
)

const raftCommand = 0

type dirEntry struct {
	LockIndex   uint64
	Key         string
	Flags       uint64
	Value       []byte
	Session     string
	ModifyIndex uint64
}

type kvsRequest struct {
	Op     string
	DirEnt dirEntry
}

// Op is one operation of a transaction on a key.
type Op struct {
	Verb   string
	DirEnt dirEntry
}

type txnRequest struct {
	Ops []struct {
		KV *Op
	}
}

type serviceCheck struct{ ID string }

type sessionRequest struct {
	Op      string
	Session struct {
		ID, Name, Node, Behavior string
		NodeChecks               []string
		ServiceChecks            []serviceCheck
		Checks                   []string
	}
}

type healthCheck struct{ CheckID, Status, ServiceID string }

type registerRequest struct {
	Node    string
	Service *struct{ ID, Service string }
	Check   *healthCheck
	Checks  []*healthCheck
}

type deregisterRequest struct{ Node, ServiceID, CheckID string }
