//! Lists the encodings of commits and tags (git-commit(1), "DISCUSSION") that the scan can read. These encodings
//! represent ASCII characters by ASCII bytes. git converts the text of a commit for display, so in any other encoding,
//! a reader would see other characters than the scan.

/// The prefixes of the names of readable encodings, in lower case and without separators.
const READABLE: [&str; 21] = [
    "utf8",
    "ascii",
    "usascii",
    "ansix3",
    "iso8859",
    "latin",
    "windows125",
    "windows874",
    "windows949",
    "cp125",
    "cp437",
    "cp85",
    "cp86",
    "cp874",
    "cp94",
    "cp95",
    "koi8",
    "euc",
    "gb",
    "big5",
    "tis620",
];

/// The complete names of further readable encodings. ISO-2022-JP is not in the list, because in ISO-2022-JP, escape
/// sequences without effect can separate the letters of a word.
const READABLE_NAMES: [&str; 8] =
    ["shiftjis", "sjis", "macroman", "macintosh", "windows31j", "johab", "cp932", "cp936"];

/// Returns the first encoding in the headers of a commit or tag that the scan cannot read. Every `encoding` line is
/// checked, because programs differ in which of several lines they use.
pub(crate) fn unreadable(object: &[u8]) -> Option<String> {
    let lines = object.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let named = lines.filter_map(|line| line.strip_prefix(b"encoding"));
    let mut named = named.map(|name| String::from_utf8_lossy(name).trim().to_owned());
    named.find(|name| !is_readable(name)).map(|name| name.chars().take(40).collect())
}

fn is_readable(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    let is_whole = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    is_whole
        && (name.is_empty()
            || READABLE.iter().any(|begin| plain.starts_with(begin))
            || READABLE_NAMES.contains(&plain.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_encodings_in_which_ascii_is_ascii() {
        for (name, readable) in [
            ("UTF-8", true),
            ("utf8", true),
            ("ISO-8859-1", true),
            ("ISO8859-15", true),
            ("latin1", true),
            ("windows-1252", true),
            ("CP1251", true),
            ("KOI8-R", true),
            ("EUC-JP", true),
            ("Shift_JIS", true),
            ("GB18030", true),
            ("gbk", true),
            ("Big5-HKSCS", true),
            ("CP932", true),
            ("CP930", false),
            ("ISO-2022-JP", false),
            ("IBM037", false),
            ("CP037", false),
            ("CP500", false),
            ("CP1047", false),
            ("EBCDIC-US", false),
            ("UTF-7", false),
            ("UTF-16", false),
            ("UTF-32LE", false),
            ("HZ-GB-2312", false),
            ("ISO-2022-KR", false),
            ("UTF-8//TRANSLIT", false),
            ("base64", false),
        ] {
            let commit = format!("tree 1\nauthor a\nencoding {name}\n\nencoding IBM037\n");
            assert_eq!(unreadable(commit.as_bytes()).is_none(), readable, "{name}");
        }
        let two = b"tree 1\nencoding UTF-8\nencoding IBM037\n\nx";
        assert_eq!(unreadable(two).as_deref(), Some("IBM037"));
    }
}
