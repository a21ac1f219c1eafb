//! The byte alphabet of GPT-2 vocabularies: each byte is written as one printable character.
//!
//! Invariant: the two directions are inverse to each other. Bytes that print as themselves in Latin-1 keep their
//! character; the other 68 take the characters from U+0100 on, in the order of the bytes.

const FIRST_SHIFTED: u32 = 0x100;

/// Says whether the byte is written as the Latin-1 character of the same number.
const fn prints_as_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that U+0100, U+0101, … stand for.
const SHIFTED: [u8; 68] = {
    let mut shifted = [0; 68];
    let mut count = 0;
    let mut byte = 0u8;
    loop {
        if !prints_as_itself(byte) {
            shifted[count] = byte;
            count += 1;
        }
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    shifted
};

/// Returns the byte that a character stands for, `None` outside the alphabet.
fn byte_of(character: char) -> Option<u8> {
    match u8::try_from(u32::from(character)) {
        Ok(byte) if prints_as_itself(byte) => Some(byte),
        Ok(_) => None,
        Err(_) => SHIFTED.get((u32::from(character) - FIRST_SHIFTED) as usize).copied(),
    }
}

/// The character of each byte.
const CHARACTERS: [char; 256] = {
    let mut characters = ['\0'; 256];
    let mut byte = 0u8;
    let mut shifted = FIRST_SHIFTED;
    loop {
        characters[byte as usize] = if prints_as_itself(byte) {
            byte as char
        } else {
            shifted += 1;
            match char::from_u32(shifted - 1) {
                Some(character) => character,
                None => panic!("the alphabet lies far below the surrogates"),
            }
        };
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    characters
};

/// Appends the characters that write the bytes.
pub(crate) fn push_text(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|byte| CHARACTERS[usize::from(*byte)]));
}

/// Appends the bytes that a token's text stands for; a text with a foreign character stands for itself.
pub(crate) fn push_bytes(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for character in text.chars() {
        let Some(byte) = byte_of(character) else {
            out.truncate(start);
            out.extend_from_slice(text.as_bytes());
            return;
        };
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_newline_and_letters_have_their_well_known_characters() {
        for (text, bytes) in [
            ("Ġ", b" ".as_slice()),
            ("Ċ", b"\n"),
            ("ĉ", b"\t"),
            ("a~", b"a~"),
            ("Ã©", "é".as_bytes()),
        ] {
            let mut out = Vec::new();
            push_bytes(text, &mut out);
            assert_eq!(out, bytes, "{text}");
        }
    }

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for character in (0..=0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(character) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn writing_and_reading_are_inverse_for_every_byte() {
        for byte in 0..=u8::MAX {
            let mut text = String::new();
            push_text(&[byte], &mut text);
            assert_eq!(text.chars().map(byte_of).collect::<Vec<_>>(), [Some(byte)]);
        }
    }

    #[test]
    fn a_text_outside_the_alphabet_stands_for_itself() {
        let mut out = Vec::new();
        push_bytes("aĠ語", &mut out);
        assert_eq!(out, "aĠ語".as_bytes());
    }
}
