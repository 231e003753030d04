"""Which addresses and ports the guard refuses. An explicit table: pure, numeric, without I/O.

``ipaddress.is_global`` and ``is_private`` are not a filter (CPython 3.10 to 3.12 call
64:ff9b::7f00:1, 2002:7f00:1::, fec0::1, 224.0.0.1 and others global), so the table is written out.
It follows the IANA special-purpose registries for IPv4 and IPv6, with the wire server of Azure
(168.63.129.16) added.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

REFUSED_IPV4: tuple[IPv4Network, ...] = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
)

GLOBAL_IPV6 = IPv6Network("2000::/3")
"""The only part of IPv6 that can be accepted without an operator's word."""

REFUSED_IPV6: tuple[IPv6Network, ...] = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)

PRIVATE_NETWORKS: tuple[IPNetwork, ...] = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),
    IPv4Network("127.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv6Network("::1/128"),
    IPv6Network("fc00::/7"),
)
"""What ``allow_private_networks`` opens: loopback and private use, no link-local, no multicast."""

METADATA_NETWORKS: tuple[IPNetwork, ...] = (
    IPv4Network("100.100.100.200/32"),
    IPv6Network("fd00:ec2::/32"),
)
"""Cloud metadata services inside ``PRIVATE_NETWORKS``: these stay refused all the same."""


LOW_PORTS = frozenset({80, 443})
"""The ports below 1024 that are allowed."""

SERVICE_PORTS = frozenset(
    {
        *(1433, 1434, 1521, 3306, 5432, 5433, 6432, 27017, 27018, 27019),  # SQL, PgBouncer, MongoDB
        *(5984, 7000, 7001, 7199, 7473, 7474, 7687, 8086, 9042, 9160),  # CouchDB, Cassandra, Neo4j
        *(6379, 6380, 11211, 11214, 11215),  # Redis, Memcached
        *(9200, 9300, 8983),  # Elasticsearch, Solr
        *(4369, 5671, 5672, 9092, 15672, 25672),  # Erlang, AMQP, Kafka
        *(2375, 2376, 2379, 2380, 6443, 10250, 10255, 10256),  # Docker, etcd, Kubernetes
        *(2181, 8300, 8301, 8302, 8500, 8600),  # ZooKeeper, Consul
        *(2049, 3389, 5900, 5901, 5985, 5986, 6000),  # NFS, RDP, VNC, WinRM, X11
        *(6660, 6661, 6662, 6663, 6664, 6665, 6666, 6667, 6668, 6669, 6697),  # IRC
    }
)
"""Ports from 1024 on that are refused: databases, caches, brokers, control planes, desktops."""


def find_network(address: IPAddress, networks: tuple[IPNetwork, ...]) -> IPNetwork | None:
    """Return the first of ``networks`` that holds ``address``, or None."""
    for network in networks:
        if address.version == network.version and address in network:
            return network
    return None


def unmapped(address: IPAddress, nat64_prefixes: tuple[IPv6Network, ...]) -> IPAddress:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself.

    IPv4-mapped addresses are judged as IPv4, and so are those of the operator's own NAT64 prefixes,
    because the connection ends at the IPv4 address.
    """
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    for prefix in nat64_prefixes:
        if address in prefix:
            return _embedded_ipv4(address, prefix.prefixlen)
    return address


def _embedded_ipv4(address: IPv6Address, prefix_length: int) -> IPv4Address:
    """Return the IPv4 address inside a NAT64 address (RFC 6052 section 2.2).

    Bits 64 to 71 are reserved and not part of it.
    """
    octets = address.packed
    start = prefix_length // 8
    if start < 9:
        octets = octets[:8] + octets[9:]
    return IPv4Address(octets[start : start + 4])


def table_rule(address: IPAddress) -> str | None:
    """Return the network of the table that refuses ``address``, or None if it is acceptable."""
    if isinstance(address, IPv4Address):
        network = find_network(address, REFUSED_IPV4)
        return str(network) if network else None
    if address not in GLOBAL_IPV6:
        return f"outside {GLOBAL_IPV6}"
    network = find_network(address, REFUSED_IPV6)
    return str(network) if network else None
