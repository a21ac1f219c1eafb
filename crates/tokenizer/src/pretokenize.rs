//! How BPE vocabularies cut text into words before they merge: a table from the name in `tokenizer.ggml.pre`.
//!
//! Invariant: the words, joined, are the text. Each pattern cuts every piece that the one before it left: what it
//! matches becomes a piece, and so does what lies between two matches.

use tokenizers::utils::SysRegex;

use crate::error::Error;
use crate::vocabulary::Spelling;

/// Says how a family of vocabularies cuts text.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// The names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Whether a word that is a token is taken whole, even where the merges would not build it.
    pub(crate) ignore_merges: bool,
    /// Whether a prompt begins with BOS when the file doesn't say.
    pub(crate) add_bos: bool,
    /// What the merges work on: bytes, or characters with U+2581 for a space.
    pub(crate) spelling: Spelling,
}

// The pieces that the patterns are built from. English contractions in either case:
macro_rules! contraction {
    () => {
        "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    };
}
// A word of letters with at most one mark or space before it:
macro_rules! letters {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}
// A word that begins with capitals and ends in small letters, and one that is all capitals:
macro_rules! cased {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix
        )
    };
}
// The same without Chinese characters:
macro_rules! cased_without_han {
    () => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:",
            contraction!(),
            r")?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:",
            contraction!(),
            r")?"
        )
    };
}
// Marks with the line ends after them, then line ends, then white space that leaves one space to the next word:
macro_rules! marks_and_space {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
macro_rules! marks_slash_and_space {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const THOUSANDS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
const CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const CJK_AND_HANGUL: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";
const LLAMA3: &str = concat!(contraction!(), "|", letters!(), r"|\p{N}{1,3}|", marks_and_space!());
const QWEN2: &str = concat!(contraction!(), "|", letters!(), r"|\p{N}|", marks_and_space!());
const QWEN35: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const SPARK: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(cased!(""), r"|\p{N}|", marks_slash_and_space!());
const GPT4O: &str = concat!(
    cased!(concat!("(?:", contraction!(), ")?")),
    r"|\p{N}{1,3}|",
    marks_slash_and_space!()
);
const YOUTU: &str =
    concat!(cased!(concat!("(?:", contraction!(), ")?")), r"|\p{N}|", marks_slash_and_space!());
const KIMI: &str = concat!(r"\p{Han}+|", cased_without_han!(), r"|\p{N}{1,3}|", marks_and_space!());
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// The letters of bicameral scripts, as the first `DeepSeek` vocabularies list them.
const CASED_SCRIPTS: &str = concat!(
    r"\s?[A-Za-z\x{B5}À-ÖØ-öø-ƺƼ-ƿ\x{1C4}-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-\x{3F5}Ϸ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ",
    r"ὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼ\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}",
    r"ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}𐐀-𐑏𐒰-𐓓",
    r"𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
);

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    patterns: &[GPT2],
    ignore_merges: false,
    add_bos: false,
    spelling: Spelling::ByteLevel,
};

/// What a file without a name gets; such files predate the key.
static DEFAULT: PreTokenizer = PreTokenizer {
    names: &["default"],
    patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ..PLAIN
};

static TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        patterns: &[DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], patterns: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["glm4", "glm5"], patterns: &[LLAMA3], ignore_merges: true, ..PLAIN },
    PreTokenizer {
        names: &["minicpm5"],
        patterns: &[
            UP_TO_THREE_DIGITS,
            concat!(contraction!(), "|", letters!(), r"|\p{N}+|", marks_and_space!()),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["jais-2"],
        patterns: &[concat!(
            contraction!(),
            "|",
            letters!(),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)",
            r"|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
        )],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        patterns: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN35], ..PLAIN },
    PreTokenizer {
        names: &["ufakzeka"],
        patterns: &[concat!(letters!(), r"|\p{N}|", marks_and_space!())],
        ..PLAIN
    },
    PreTokenizer { names: &["laguna"], patterns: &[r"[^\n]+|[\n]+", QWEN2], ..PLAIN },
    PreTokenizer {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            CASED_SCRIPTS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            CJK_AND_HANGUL,
            r"\p{N}+",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, DIGIT],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: &[UP_TO_THREE_DIGITS, CJK, DEEPSEEK3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["spark2_5"],
        patterns: &[UP_TO_THREE_DIGITS, CJK, SPARK, DIGIT],
        ..PLAIN
    },
    PreTokenizer {
        names: &["youtu"],
        patterns: &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            YOUTU,
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer { names: &["bloom", "gpt3-finnish", "poro-chat"], patterns: &[BLOOM], ..PLAIN },
    PreTokenizer { names: &["viking"], patterns: &[BLOOM, DIGIT], ..PLAIN },
    PreTokenizer {
        names: &["tekken"],
        patterns: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        patterns: &[GPT4O],
        ..PLAIN
    },
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        patterns: &[GPT4O],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer { names: &["tiny_aya", "cohere2moe"], patterns: &[THOUSANDS, GPT4O], ..PLAIN },
    PreTokenizer { names: &["kimi-k2"], patterns: &[KIMI], ..PLAIN },
    PreTokenizer { names: &["superbpe"], patterns: &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"], ..PLAIN },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[concat!(
            contraction!(),
            "|",
            letters!(),
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
        ..PLAIN
    },
    PreTokenizer {
        names: &["seed-coder"],
        patterns: &[concat!(
            contraction!(),
            "|",
            letters!(),
            r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..PLAIN
    },
    PreTokenizer {
        names: &["exaone-moe"],
        patterns: &[concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
            r"|\s+(?!\S)|\s+"
        )],
        ..PLAIN
    },
    PreTokenizer {
        names: &["chameleon"],
        patterns: &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["afmoe"],
        patterns: &[
            THOUSANDS,
            "[一-鿿㐀-䶿豈-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
            DEEPSEEK3,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["gemma4", "granite-embed-multi-311m"],
        patterns: &[r"[^\n]+|\n+"],
        add_bos: true,
        spelling: Spelling::Underlined,
        ..PLAIN
    },
    PreTokenizer {
        names: &["sarvam-moe"],
        patterns: &[r"[^\n]+|\n+"],
        spelling: Spelling::Underlined,
        ..PLAIN
    },
];

/// Finds the pre-tokenizer of the name; no name means the one from before names were written.
pub(crate) fn find(name: Option<&str>) -> Result<&'static PreTokenizer, Error> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(&DEFAULT);
    };
    let mut all = TABLE.iter().chain([&DEFAULT]);
    all.find(|entry| entry.names.contains(&name))
        .ok_or_else(|| Error::UnknownPreTokenizer { name: name.to_owned(), known: known_names() })
}

fn known_names() -> String {
    let mut names: Vec<&str> =
        TABLE.iter().chain([&DEFAULT]).flat_map(|entry| entry.names.iter().copied()).collect();
    names.sort_unstable();
    names.join(", ")
}

/// Cuts text into words.
pub(crate) struct Splitter {
    patterns: Vec<SysRegex>,
}

impl Splitter {
    /// Compiles the patterns of a pre-tokenizer.
    pub(crate) fn new(rules: &PreTokenizer) -> Self {
        let compile =
            |pattern: &&str| SysRegex::new(pattern).expect("every pattern of the table is valid");
        Self { patterns: rules.patterns.iter().map(compile).collect() }
    }

    /// Hands each word to `each`, in order.
    pub(crate) fn split<'t>(&self, text: &'t str, each: &mut impl FnMut(&'t str)) {
        split_by(&self.patterns, text, each);
    }
}

fn split_by<'t>(patterns: &[SysRegex], text: &'t str, each: &mut impl FnMut(&'t str)) {
    let Some((pattern, further)) = patterns.split_first() else {
        if !text.is_empty() {
            each(text);
        }
        return;
    };
    let mut done = 0;
    for (start, end) in pattern.find_iter(text) {
        split_by(further, &text[done..start], each);
        split_by(further, &text[start..end], each);
        done = end;
    }
    split_by(further, &text[done..], each);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let splitter = Splitter::new(find(Some(name)).unwrap());
        splitter.split(text, &mut |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn every_pattern_compiles_and_no_name_is_listed_twice() {
        let mut names = HashSet::new();
        assert_eq!(SPLITTERS.len(), TABLE.len() + 1);
        for rules in TABLE.iter().chain([&DEFAULT]) {
            for name in rules.names {
                assert!(names.insert(name), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = find(Some("qwen9")).unwrap_err().to_string();
        assert!(message.contains("\"qwen9\"") && message.contains("qwen2, "), "{message}");
    }

    #[test]
    fn families_cut_digits_as_their_authors_do() {
        assert_eq!(words("gpt-2", "a 12345"), ["a", " 12345"]);
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("tiny_aya", "1234567"), ["1", "234", "567"]);
        assert_eq!(words("superbpe", "1234567"), ["1", "234", "567"]);
        assert_eq!(words("smollm", "x 12"), ["x", " ", "1", "2"]);
    }

    #[test]
    fn families_cut_case_and_contractions_as_their_authors_do() {
        assert_eq!(words("gpt-4o", "helloWorld DON'T"), ["hello", "World", " DON'T"]);
        assert_eq!(words("tekken", "helloWorld"), ["hello", "World"]);
        assert_eq!(words("llama-bpe", "DON'T"), ["DON", "'T"]);
        assert_eq!(words("gpt-2", "DON'T"), ["DON", "'", "T"]);
        assert_eq!(words("kimi-k2", "ab中文cd"), ["ab", "中文", "cd"]);
    }

    static SPLITTERS: LazyLock<Vec<Splitter>> =
        LazyLock::new(|| TABLE.iter().chain([&DEFAULT]).map(Splitter::new).collect());

    proptest! {
        #[test]
        fn the_words_joined_are_the_text(text in "(\\PC|[ \\n\\t\\r'0-9a-zA-Z])*") {
            for splitter in SPLITTERS.iter() {
                let mut joined = String::new();
                splitter.split(&text, &mut |word| joined.push_str(word));
                prop_assert_eq!(&joined, &text);
            }
        }
    }
}
