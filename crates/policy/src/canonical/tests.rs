use proptest::prelude::*;

use super::*;

#[test]
fn hosts_have_one_canonical_spelling() {
    for (raw, canonical) in [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM.", "api.example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("ｅｘａｍｐｌｅ。com", "example.com"),
        ("localhost", "localhost"),
        ("_egress.local", "_egress.local"),
        ("127.0.0.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("127.1.", "127.0.0.1"),
        ("[2001:DB8:0:0::1]", "[2001:db8::1]"),
        ("[::ffff:1.2.3.4]", "[::ffff:102:304]"),
    ] {
        assert_eq!(host(raw).expect(raw), canonical, "{raw}");
    }
    for raw in [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a b",
        "a%2eb",
        "%61.b",
        "a/b",
        "a\\b",
        "a?b",
        "a#b",
        "a@b",
        "a:b",
        "a\0b",
        "*.a",
        "1.2.3.256",
        "[::1",
        "::1",
        "[::1%eth0]",
        "a\u{200b}\u{0}b",
        "-\u{300}.xn--a",
    ] {
        assert!(host(raw).is_err(), "{raw:?} gave {:?}", host(raw));
    }
    assert!(host(&"a".repeat(64)).is_err());
    assert!(host(&["a"; 128].join(".")).is_err());
}

#[test]
fn authorities_split_at_the_port() {
    for (raw, name, port) in [
        ("a.example", "a.example", None),
        ("a.example:443", "a.example", Some(443)),
        ("A.example.:0443", "a.example", Some(443)),
        ("[::1]:8443", "[::1]", Some(8443)),
        ("[::1]", "[::1]", None),
    ] {
        let read = authority(raw).expect(raw);
        assert_eq!((read.host.as_ref(), read.port), (name, port), "{raw}");
    }
    for raw in
        ["a:", "a:0", "a:65536", "a:+1", "a:1:2", "u@a", "u:p@a:443", ":443", "", "::1", "[::1]x:4", "a:４"]
    {
        assert!(authority(raw).is_err(), "{raw} gave {:?}", authority(raw));
    }
}

#[test]
fn paths_have_one_canonical_spelling() {
    for (raw, canonical) in [
        ("", "/"),
        ("/", "/"),
        ("/v1/messages", "/v1/messages"),
        ("/a/./b/../c", "/a/c"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/.%2e/", "/"),
        ("/..", "/"),
        ("/../../x", "/x"),
        ("/a/..", "/"),
        ("/a/b/.", "/a/b/"),
        ("/a\\..\\b", "/b"),
        ("/%7euser/%41", "/~user/A"),
        ("/a b\"<é", "/a%20b%22%3C%C3%A9"),
        ("/x[1]|^", "/x%5B1%5D%7C%5E"),
        ("/%c3%a9", "/%C3%A9"),
    ] {
        let read = path(raw);
        assert_eq!(read.text, canonical, "{raw}");
        assert_eq!(read.ambiguous, None, "{raw}");
    }
}

#[test]
fn marks_ambiguous_paths() {
    use Ambiguous as A;
    for (raw, canonical, why) in [
        ("//a", "//a", A::DoubledSlash),
        ("/a//..//b", "/a//b", A::DoubledSlash),
        ("/a%2fb", "/a%2Fb", A::EncodedSlash),
        ("/a%5cb", "/a%5Cb", A::EncodedSlash),
        ("/..%2f..", "/..%2F..", A::EncodedSlash),
        ("/a;x=1/b", "/a;x=1/b", A::Parameter),
        ("/a/..;/b", "/a/..;/b", A::Parameter),
        ("/a%3bx", "/a%3Bx", A::Parameter),
        ("/admin.", "/admin.", A::TrailingDot),
        ("/a.../b", "/a.../b", A::TrailingDot),
        ("/admin%20", "/admin%20", A::TrailingDot),
        ("/a%00.json", "/a%00.json", A::Control),
        ("/a%0d%0ab", "/a%0D%0Ab", A::Control),
        ("/a\tb", "/a%09b", A::Control),
        ("/%252e%252e/b", "/%252e%252e/b", A::DoubleEncoded),
        ("/a%zz", "/a%25zz", A::InvalidEncoding),
        ("/%%34%31", "/%2541", A::InvalidEncoding),
        ("/%u002e/x", "/%25u002e/x", A::InvalidEncoding),
        ("/%c0%ae%c0%ae/b", "/%C0%AE%C0%AE/b", A::InvalidUtf8),
        ("/%ff", "/%FF", A::InvalidUtf8),
        ("*", "*", A::NotAbsolute),
        ("a/b", "/a/b", A::NotAbsolute),
    ] {
        let read = path(raw);
        assert_eq!((read.text.as_ref(), read.ambiguous), (canonical, Some(why)), "{raw}");
    }
}

#[test]
fn queries_keep_their_order_and_meaning() {
    for (raw, canonical) in [
        ("", ""),
        ("a=1&b=%41%2f", "a=1&b=A%2F"),
        ("q=100%", "q=100%25"),
        ("q=a b\r\n", "q=a%20b%0D%0A"),
        ("ids[]=1|2", "ids[]=1|2"),
        ("a?b=/;c", "a?b=/;c"),
    ] {
        assert_eq!(query(raw), canonical, "{raw:?}");
    }
    let pairs: Vec<_> = decoded_pairs("a=1&&b=x%20y+z;c").collect();
    assert_eq!(pairs, [("a".into(), "1".into()), ("b".into(), "x y z".into()), ("c".into(), "".into())]);
}

/// Generates paths from pieces that servers interpret differently.
fn hostile_path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/"),
        Just("."),
        Just(".."),
        Just("%2e"),
        Just("%2F"),
        Just("\\"),
        Just("%5c"),
        Just(";"),
        Just("%"),
        Just("%2"),
        Just("%25"),
        Just("41"),
        Just("%00"),
        Just("%c0%ae"),
        Just("a"),
        Just("é"),
        Just(" "),
        Just("~"),
        Just("["),
        Just("\u{0}"),
        Just("2e"),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn hosts_are_idempotent_and_agree_with_url(raw in "[a-zA-Z0-9.:éß。\\[\\]x_-]{0,24}|[ -~]{0,12}") {
        let Ok(once) = host(&raw) else { return Ok(()) };
        prop_assert_eq!(host(&once).expect("canonical"), once.clone());
        let url = url::Url::parse(&format!("https://{raw}/")).expect("url reads what we read");
        prop_assert_eq!(url.host_str().expect("host").trim_end_matches('.'), once);
    }

    #[test]
    fn authorities_never_panic(raw in any::<String>()) {
        if let Ok(read) = authority(&raw) {
            prop_assert_eq!(host(&read.host).expect("canonical"), read.host.clone());
        }
    }

    #[test]
    fn paths_are_idempotent(raw in prop_oneof![hostile_path(), any::<String>()]) {
        let once = path(&raw);
        let twice = path(&once.text);
        prop_assert_eq!(&twice.text, &once.text);
        prop_assert!(once.text.starts_with('/') || once.text == "*");
        prop_assert!(once.text.bytes().all(|byte| byte.is_ascii_graphic()));
        prop_assert!(!once.text.split('/').any(|segment| segment == "." || segment == ".."));
        if once.ambiguous.is_none() {
            prop_assert_eq!(twice.ambiguous, None);
        }
    }

    #[test]
    fn paths_agree_with_url(raw in hostile_path()) {
        // The `?` prevents `url` from trimming a trailing space.
        let url = url::Url::parse(&format!("https://h{raw}?")).expect("url");
        prop_assert_eq!(path(url.path()).text, path(&raw).text);
    }

    #[test]
    fn an_unambiguous_path_has_one_reading(raw in hostile_path()) {
        let read = path(&raw);
        if read.ambiguous.is_none() {
            // If a server decodes the path again, this adds neither a separator nor a dot segment.
            let decoded = percent_encoding::percent_decode_str(&read.text).decode_utf8().expect("UTF-8");
            prop_assert_eq!(decoded.matches(['/', '\\']).count(), read.text.matches('/').count());
            prop_assert!(!decoded.split('/').any(|segment| segment == "." || segment == ".."));
        }
    }

    #[test]
    fn queries_are_idempotent(raw in any::<String>()) {
        let once = query(&raw);
        prop_assert_eq!(query(&once), once.clone());
        prop_assert!(once.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'));
    }
}
