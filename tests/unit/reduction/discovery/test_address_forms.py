"""Address forms that users may write for reducers, and forms that are rejected before any connection is opened."""

import pytest
from reduction.discovery.address_forms import DnsName, check_address, dns_name, expand
from reduction.discovery.schemes import check_texts
from reduction.errors import ConfigError
from reduction.limits import ADDRESSES_MAX


@pytest.mark.parametrize(
    ("address", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("reducer-{0..2}.svc:50051", ("reducer-0.svc:50051", "reducer-1.svc:50051", "reducer-2.svc:50051")),
        ("r{08..11}:1", ("r08:1", "r09:1", "r10:1", "r11:1")),
        ("r{8..11}:1", ("r8:1", "r9:1", "r10:1", "r11:1")),
        ("h{1..2}:{5..6}", ("h1:5", "h1:6", "h2:5", "h2:6")),
        ("h:{50051..50053}", ("h:50051", "h:50052", "h:50053")),
        ("h{3..3}:1", ("h3:1",)),
    ],
)
def test_ranges(address, addresses):
    assert expand(address) == addresses


@pytest.mark.parametrize(
    ("address", "count"), [("r{3..1}:1", 0), ("r{1..5000}:1", 5000), ("r{0..99}-{0..99}:1", 10000)]
)
def test_a_range_must_not_be_empty_or_too_large(address, count):
    with pytest.raises(ConfigError, match=f"stands for {count} addresses; allowed: 1 to {ADDRESSES_MAX}"):
        expand(address)


def test_a_dns_name_may_give_a_number_of_addresses():
    assert dns_name("dns:a.b:50051") == DnsName("dns:a.b:50051", "a.b", 50051, 1)
    assert dns_name("dns:a.b:50051?count=12").count == 12


@pytest.mark.parametrize("query", ["count=0", "count=-1", "count=x", "n=3", "count", "", "count=4097"])
def test_anything_else_after_the_question_mark_is_refused(query):
    with pytest.raises(
        ConfigError, match="only count=K is allowed after the question mark, with K from 1 to 4096"
    ):
        check_address(f"dns:a:1?{query}")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://a:1", "is a URL: write HOST:PORT, without http://"),
        ("grpc://a:1", "is a URL: write HOST:PORT, without grpc://"),
        ("::1:50051", "write an IPv6 address in brackets, [::1]:50051"),
        ("fe80::1%eth0:50051", "write an IPv6 address in brackets, [fe80::1%eth0]:50051"),
        ("[::1:50051", "write an IPv6 address in brackets"),
        ("[a:b]:50051", "write an IPv6 address in brackets"),
        ("a", "is not HOST:PORT"),
        ("a:b", "is not HOST:PORT"),
        ("r{0..3}", "is not HOST:PORT"),
        ("r:{65535..65536}", "is not HOST:PORT"),
        ("r{3..0}:1", "stands for 0 addresses"),
        ("a" * 254 + ":1", "is longer than 255 bytes"),
        ("a\udcff:1", "is not text"),
        ("dns:::1:1", "write an IPv6 address in brackets"),
        ("$HOST:50051", "has a variable that was not replaced by its value"),
        ("dns:${NAME}:50051", "has a variable that was not replaced by its value"),
        ("{{ host }}:50051", "has a variable that was not replaced by its value"),
        ("r-[0-2]:5", "write {0..2} instead of [0-2]"),
        ("r-{00-11}.svc:5", "write {00..11} instead of {00-11}"),
        ("r-{0...2}:5", "write {0..2} instead of {0...2}"),
        ("r-[0:5", "a range is written {0..3}"),
        ("a:1;b:2", "write commas between addresses, a:1,b:2"),
        ("a:1 b:2", "write commas between addresses, a:1,b:2"),
        ("a:1\nb:2", "write commas between addresses, a:1,b:2"),
        ("[::1]:1; [::2]:2", "write commas between addresses, [::1]:1,[::2]:2"),
        ("a :1", "write commas between addresses"),
        ("0.0.0.0:50051", "for this host that is 127.0.0.1:50051"),
        ("[::]:50051", "for this host that is 127.0.0.1:50051"),
        ("[0:0:0:0:0:0:0:0]:50051", "for this host that is 127.0.0.1:50051"),
        ("*:50051", "for this host that is 127.0.0.1:50051"),
        ("dns:0.0.0.0:1", "for this host that is 127.0.0.1:1"),
        ("user@a:1", "a host name cannot have '@'"),
        ("'a:1", 'a host name cannot have "\'"'),
        ("a/b:1", "a host name cannot have '/'"),
    ],
)
def test_refused_addresses_suggest_what_to_write(address, text):
    with pytest.raises(ConfigError) as caught:
        check_address(address)
    assert repr(address) in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "[::1]:1",
        "[fe80::1%eth0]:1",
        "dns:[::1]:1",
        "a-b_c:1",
        "10.0.0.1:65535",
        "h:{1..3}",
        "bücher.example:1",
    ],
)
def test_valid_addresses_pass(address):
    check_address(address)


def test_all_ranges_together_are_bounded():
    check_texts(["a{1..4000}:1", "b{1..96}:1"])
    with pytest.raises(ConfigError, match="has 4097 addresses; the limit is 4096"):
        check_texts(["a{1..4000}:1", "b{1..97}:1"])
