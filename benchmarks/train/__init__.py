"""How networks were made that come with patchslim or that its tests of whole runs want."""
