package scheduler

// NodesWait is how long a pass waits for nodes that others have.
const NodesWait = nodesWait
