use proptest::prelude::*;

use super::{Filter, Pass};

const ALL: Pass = Pass { clipboard: true, notify: true, title: true, images: true };

fn shown(output: &[u8], pass: Pass) -> Vec<u8> {
    let mut shown = Vec::new();
    Filter::new(pass).filter(output, &mut shown);
    shown
}

fn text(output: &[u8], pass: Pass) -> String {
    String::from_utf8(shown(output, pass)).expect("what is shown is UTF-8")
}

#[test]
fn drawing_sequences_pass_unchanged() {
    for output in [
        "plain text\r\n\ttab\x08\x07",
        "é 漢字 👩‍👩‍👧 ✜ Ý \u{a0}",
        "\x1b[0m\x1b[1;31mred\x1b[38;2;1;2;3m\x1b[48:2::4:5:6mtrue\x1b[4:3mcurly",
        "\x1b[H\x1b[2J\x1b[10;20f\x1b[5A\x1b[K\x1b[3;20r\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1;1000;1006h",
        "\x1b7\x1b8\x1b=\x1b>\x1bD\x1bM\x1bc\x1b(0\x1b(B\x1b#8\x0e\x0f",
        "\x1b[2 q\x1b[!p\x1b[>4;2m\x1b[>1u\x1b[<u\x1b[=5u\x1b[?2026h\x1b[?2026l",
        "\x1b]8;id=1;https://example.com/a?b=c\x1b\\link\x1b]8;;\x1b\\",
    ] {
        assert_eq!(text(output.as_bytes(), Pass::default()), output);
    }
}

#[test]
fn queries_and_side_effects_are_always_dropped() {
    for output in [
        // Requests for reports: status, cursor, identity, parameters, title, size, modes, settings, checksums, version.
        "\x1b[5n",
        "\x1b[6n",
        "\x1b[?6n",
        "\x1b[c",
        "\x1b[0c",
        "\x1b[>c",
        "\x1b[=c",
        "\x1bZ",
        "\x1b[x",
        "\x1b[21t",
        "\x1b[20t",
        "\x1b[14t",
        "\x1b[18t",
        "\x1b[?25$p",
        "\x1b[4$p",
        "\x1bP$qm\x1b\\",
        "\x1bP+q544e\x1b\\",
        "\x1b[1;1;1;1;1;1*y",
        "\x1b[>q",
        "\x1b[?u",
        "\x1b[?4m",
        "\x1b[?1;1;0S",
        "\x05",
        "\x1b[1$w",
        "\x1b['|",
        // Queries and settings of colours, clipboard, cell size and font.
        "\x1b]10;?\x07",
        "\x1b]11;?\x1b\\",
        "\x1b]4;1;?\x07",
        "\x1b]4;1;#ff0000\x07",
        "\x1b]52;c;?\x07",
        "\x1b]52;c;\x07",
        "\x1b]52;;?\x07",
        "\x1b]50;?\x07",
        "\x1b]1337;ReportCellSize\x07",
        // Sequences that access files or run commands.
        "\x1b]1337;File=name=eC50eHQ=:eA==\x07",
        "\x1b]1337;File=inline=1;inline=0:eA==\x07",
        "\x1b]1337;RequestUpload=format=tgz\x07",
        "\x1b]1337;Copy=:c2VjcmV0\x07",
        "\x1b]1337;SetUserVar=a=Yg==\x07",
        "\x1b]7;file:///etc\x07",
        "\x1b]9;6;macro\x07",
        "\x1b]9;4;1;50\x07",
        "\x1b]777;precmd\x07",
        "\x1b]99;p=?;\x1b\\",
        "\x1b]133;A\x07",
        "\x1b]633;E;rm\x07",
        "\x1b_Gt=f,a=T;L2V0Yy9wYXNzd2Q=\x1b\\",
        "\x1b_Gt=t;eA==\x1b\\",
        "\x1b_Gi=1,a=q;AAAA\x1b\\",
        "\x1b_Gt=d,t=f;eA==\x1b\\",
        "\x1b_other\x1b\\",
        // Sequences for printing, key definitions, locking the keyboard, the width, 8-bit responses and leaving UTF-8.
        "\x1b[5i",
        "\x1b[?5i",
        "\x1bP0;1|17/17\x1b\\",
        "\x1b[2h",
        "\x1b[?3h",
        "\x1b[62;1\"p",
        "\x1b F",
        "\x1b G",
        "\x1b%@",
        "\x1b[1;2;3;4;5;6;7#{",
        // Privacy message, and start of string.
        "\x1b^private\x1b\\",
        "\x1bXstring\x1b\\",
    ] {
        let filtered = text(output.as_bytes(), ALL);
        assert!(
            filtered.is_empty() || filtered == "\\" || !filtered.contains('\x1b'),
            "{output:?} left {filtered:?}"
        );
        assert!(!filtered.contains("52;"), "{output:?} left {filtered:?}");
    }
}

#[test]
fn settings_allow_their_sequences_only() {
    let title = Pass { title: true, ..Pass::default() };
    let notify = Pass { notify: true, ..Pass::default() };
    let clipboard = Pass { clipboard: true, ..Pass::default() };
    let images = Pass { images: true, ..Pass::default() };
    for (pass, output, expected) in [
        (title, "\x1b]0;my title é✜\x07", "\x1b]0;my title é✜\x1b\\"),
        (title, "\x1b]2;t\x1b\\", "\x1b]2;t\x1b\\"),
        (title, "\x1bkscreen\x1b\\", "\x1b]2;screen\x1b\\"),
        (title, "\x1b[22;0t\x1b[23;0t", "\x1b[22;0t\x1b[23;0t"),
        (notify, "\x1b]9;done\x07", "\x1b]9;done\x1b\\"),
        (notify, "\x1b]777;notify;a;b\x07", "\x1b]777;notify;a;b\x1b\\"),
        (clipboard, "\x1b]52;c;c2VjcmV0\x07", "\x1b]52;c;c2VjcmV0\x1b\\"),
        (images, "\x1bP0;1;0q\"1;1#0~~-\x1b\\", "\x1bP0;1;0q\"1;1#0~~-\x1b\\"),
        (images, "\x1b_Ga=T,f=100,q=0;aGk=\x1b\\", "\x1b_Ga=T,f=100,q=2;aGk=\x1b\\"),
        (images, "\x1b_Ga=d\x1b\\", "\x1b_Ga=d,q=2\x1b\\"),
        (images, "\x1b]1337;File=inline=1;size=2:aGk=\x07", "\x1b]1337;File=inline=1;size=2:aGk=\x1b\\"),
    ] {
        assert_eq!(text(output.as_bytes(), pass), expected);
        assert_eq!(text(output.as_bytes(), Pass::default()), "", "{output:?}");
    }
}

#[test]
fn both_forms_of_c1_are_controls_and_utf_8_stays_intact() {
    let none = Pass::default();
    for (output, expected) in [
        (&b"\x9b1mraw"[..], "\x1b[1mraw"),
        (b"\xc2\x9b1mencoded", "\x1b[1mencoded"),
        (b"a\x9d52;c;eA==\x9cb", "ab"),
        (b"a\xc2\x9d52;c;eA==\xc2\x9cb", "ab"),
        (b"a\x90$qm\x9cb\x9fGx\x9cc\x98x\x9cd\x9ex\x9ce", "abcde"),
        // UTF-8 characters that contain the bytes 0x9c and 0x9d.
        ("\x1b]0;✜ Ý\x07after".as_bytes(), "after"),
        ("✜Ý\u{10ff5d}".as_bytes(), "✜Ý\u{10ff5d}"),
        (b"\xff\xc0\x80\xe2\x28\xf0\x9f\x1b[1m", "\u{fffd}\u{fffd}(\u{fffd}\x1b[1m"),
        (b"\x85\x8d\x84\x88\x8e", "\x1bE\x1bM\x1bD\x1bH"),
    ] {
        let filtered = text(output, none);
        if output.starts_with(b"\xff") {
            assert!(filtered.ends_with("\x1b[1m") && filtered.contains('('), "{filtered:?}");
        } else {
            assert_eq!(filtered, expected, "{output:?}");
        }
    }
}

#[test]
fn aborted_sequences_do_not_hide_others() {
    let none = Pass::default();
    for (output, expected) in [
        ("\x1b]0;x\x1b]52;c;eA==\x07y", "y"),
        ("\x1b]0;x\x1b[1my", "\x1b[1my"),
        ("\x1b[1\x1b]52;c;eA==\x07y", "y"),
        ("\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\y", "y"),
        ("\x1b[31\x18m", "m"),
        ("\x1b[3\n1mx", "\n\x1b[31mx"),
        ("\x1b\x1b[1m", "\x1b[1m"),
        ("\x1b[?25;3;2004h", "\x1b[?25;2004h"),
        ("\x1b[99999999C", ""),
        ("\x1b]8;;file:///etc/passwd\x07x", "\x1b]8;;\x1b\\x"),
        ("\x1b]8;;javascript:x\x07x", "\x1b]8;;\x1b\\x"),
    ] {
        assert_eq!(text(output.as_bytes(), none), expected, "{output:?}");
    }
}

#[test]
fn memory_is_bounded_for_endless_sequences() {
    let mut filter = Filter::new(ALL);
    let mut shown = Vec::new();
    for head in ["\x1b]52;c;", "\x1b]0;", "\x1b[", "\x1b_Ga=T,f=", "\x1bP1", "\x1b]1337;File=", "\x1bk"] {
        shown.clear();
        filter.filter(head.as_bytes(), &mut shown);
        for _ in 0..64 {
            filter.filter(&[b'1'; 16 * 1024], &mut shown);
        }
        assert!(format!("{filter:?}").len() < 1024 * 1024, "{head:?}");
        filter.filter(b"\x18m", &mut shown);
    }
    assert_eq!(shown, b"m");
}

/// Generates output from pieces of every kind of sequence. The pieces are complete or incomplete.
fn any_sequences() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(vec![
            &b"\x1b"[..], b"\x1b]", b"\x1b[", b"\x1bP", b"\x1b_G", b"\x1b^", b"\x1bX", b"\x1bk", b"\x1b\\",
            b"\x07", b"\x9b", b"\x9d", b"\x90", b"\x9c", b"\x9f", b"\xc2", b"\xe2\x9c", b"\x18", b"?", b">",
            b"52;c;eA==", b"0;title", b"8;;https://a", b"9;n", b"777;notify;a;b", b"1337;File=inline=1:", b"q",
            b"a=T;", b"t=f,", b"1;2", b"m", b"h", b"n", b"c", b"$", b" ", b"%", b"(", b"$qm", b"tmux;", b"6n",
            b"?2004h", b"text", b"\r\n", b"\xff", b"\x05",
        ]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn some_pass() -> impl Strategy<Value = Pass> {
    any::<[bool; 4]>().prop_map(|[clipboard, notify, title, images]| Pass {
        clipboard,
        notify,
        title,
        images,
    })
}

/// Returns the text after each ESC in filtered output.
fn introductions(shown: &str) -> Vec<&str> {
    shown.split('\x1b').skip(1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn splitting_the_stream_makes_no_difference(output in any_sequences(), cut in any::<prop::sample::Index>(), pass in some_pass()) {
        let whole = shown(&output, pass);
        let (first, second) = output.split_at(cut.index(output.len() + 1));
        let mut filter = Filter::new(pass);
        let mut cut = Vec::new();
        filter.filter(first, &mut cut);
        filter.filter(second, &mut cut);
        prop_assert_eq!(&cut, &whole);
        let mut filter = Filter::new(pass);
        let mut single = Vec::new();
        output.iter().for_each(|byte| filter.filter(&[*byte], &mut single));
        prop_assert_eq!(single, whole);
    }

    #[test]
    fn no_forbidden_sequence_survives(output in any_sequences()) {
        let filtered = shown(&output, Pass::default());
        let filtered = String::from_utf8(filtered).expect("what is shown is UTF-8");
        let controls = filtered.chars().filter(|c| ('\u{80}'..='\u{9f}').contains(c) || *c == '\x05').count();
        prop_assert_eq!(controls, 0);
        for after in introductions(&filtered) {
            let kind = after.chars().next().unwrap_or(' ');
            let known = "[]\\78=>DEHMc()*+-./#".contains(kind);
            prop_assert!(known, "{after:?}");
            prop_assert!(kind != ']' || after.starts_with("]8;"), "{after:?}");
            if kind == '[' {
                let end = after[1..].find(|c: char| ('@'..='~').contains(&c)).expect("a final byte") + 1;
                let (body, last) = (&after[1..end], &after[end..=end]);
                prop_assert!(!"cnxtiy".contains(last) || (body.starts_with('>') && last == "n"), "{after:?}");
                let asking = body.contains(['$', '*', '\'', '&', ',', '%']);
                prop_assert!(!asking, "{after:?}");
            }
        }
    }

    #[test]
    fn filtering_is_idempotent(output in any_sequences(), pass in some_pass()) {
        let once = shown(&output, pass);
        // If the stream ends inside an image, the filtered output ends in an incomplete sequence. The byte 0x18 (CAN)
        // aborts this sequence.
        let whole = shown(&[&once[..], b"\x18"].concat(), pass);
        let twice = shown(&[&whole[..], b"\x18"].concat(), pass);
        prop_assert_eq!(twice, whole);
    }

    #[test]
    fn plain_text_passes_unchanged(output in "[ -~\\p{L}\\p{So}\n\t]{0,80}") {
        prop_assert_eq!(text(output.as_bytes(), Pass::default()), output);
    }
}
