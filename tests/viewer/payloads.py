"""What people send to servers that join paths."""

from __future__ import annotations

from itertools import product

_UPS = ("../", "..%2f", "..%2F", "%2e%2e/", "%2e%2e%2f", "..\\", "..%5c", "%252e%252e%252f", "..%252f", "..%c0%af",
        "%c0%ae%c0%ae/", "%uff0e%uff0e/", "....//", "..;/", "..%00/")  # fmt: skip
_TARGETS = ("etc/passwd", "secret.txt", "slides/S0.tiff", "runs/abmil/0/run.json", "bags")
_ODD = ("/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "C:\\Windows\\win.ini", "file:///etc/passwd", "~", "~root",
        ".", "..", "...", "%00", "a%00b", "-1", "1e9", "NaN", "999999999999999999999", "0x10", "+1", "1.0", "%20",
        "S0", "S0.tiff", "S0%2etiff", "secret.txt", "..%2fsecret.txt", "slides%2fS0.tiff", "%ff%fe", "\u202eexe.S0",
        "<script>alert(1)</script>", "%3Cscript%3E", "'%20or%201=1", "${7*7}", "{{7*7}}", "%0d%0aX-Leak: 1",
        "app.py", "..%2fapp.py", "vendor%2fopenseadragon.min.js", "a" * 5000, "%F0%9F%98%80")  # fmt: skip

#: well over a hundred
PAYLOADS = [
    *(up * depth + target for up, depth, target in product(_UPS, (1, 6), _TARGETS)),
    *_ODD,
]
