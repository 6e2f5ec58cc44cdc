package netplugin

var AttachedBy = attached
