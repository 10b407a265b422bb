"""Says which IP addresses are public. The lists are the same on every release of Python, whose own differ."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        # Special purposes that Python's ``is_global`` lacks in some of its releases (IANA's registry for IPv4).
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 gives Oracle's cloud its metadata
        "192.88.99.0/24",  # relays of 6to4
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved
        # Public by number, and reached only from inside one cloud.
        "168.63.129.16/32",  # Azure's host: metadata, name server
        "192.80.8.124/32",  # Equinix Metal's metadata
        "161.26.0.0/16",  # IBM's services
        "166.8.0.0/14",  # IBM's services
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that IANA has given out for the internet."""
_NOT_PUBLIC_6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo, whose addresses hold that of a private machine
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The third quarter of an address that tunnels to the IPv4 address in the fourth (RFC 5214)."""


def is_public(address: str) -> bool:
    """Whether an IP address is public, that is, on the internet.

    An IPv6 address that stands for an IPv4 address (mapped, 6to4, NAT64, ISATAP) is public if that one is.
    """
    return _is_public(ipaddress.ip_address(address.split("%")[0]))


def _is_public(ip: _Address) -> bool:
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not any(ip in network for network in _NOT_PUBLIC)
    if not all(_is_public(inner) for inner in _inner(ip)):
        return False
    if ip.ipv4_mapped is not None or ip in _NAT64:
        return True
    return ip in _GLOBAL_UNICAST and not any(ip in network for network in _NOT_PUBLIC_6)


def _inner(ip: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an address stands for."""
    last = int(ip) & 0xFFFFFFFF
    if ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip in _NAT64 or (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(last)
