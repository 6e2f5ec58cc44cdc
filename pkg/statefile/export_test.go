package statefile

// HolderOf reads the text of /proc/locks.
var HolderOf = holderOf

// Temporary is the name of the file that a writer who was killed may leave.
var Temporary = temporary
