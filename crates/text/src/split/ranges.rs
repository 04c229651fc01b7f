//! Sets of characters that families of tokenizers spell out as ranges.

/// Ranges of characters, both ends included, ascending and apart.
pub(super) type Ranges = &'static [(char, char)];

/// Whether `c` is in one of `ranges`.
pub(super) fn contains(ranges: Ranges, c: char) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= c);
    after > 0 && c <= ranges[after - 1].1
}

/// Chinese characters and kana, as `deepseek-v3` lists them.
pub(super) const CHINESE_AND_KANA: Ranges = &[('\u{3040}', '\u{30FF}'), ('\u{4E00}', '\u{9FA5}')];

/// What `deepseek-llm` and `deepseek-coder` take for the scripts of the east; the first range is that wide.
pub(super) const DEEPSEEK_EAST: Ranges = &[('\u{800}', '\u{9FA5}'), ('\u{AC00}', '\u{D7FF}')];

/// What `deepseek-llm` takes for punctuation; the second range has the letters of ASCII in it.
pub(super) const DEEPSEEK_PUNCTUATION: Ranges = &[
    ('\u{21}', '\u{2F}'),
    ('\u{3A}', '\u{7E}'),
    ('\u{2018}', '\u{201F}'),
    ('\u{3000}', '\u{3002}'),
    ('\u{FF01}', '\u{FF0F}'),
    ('\u{FF1A}', '\u{FF5E}'),
];

/// Hangul, as `youtu` lists it.
pub(super) const YOUTU_HANGUL: Ranges = &[('\u{3131}', '\u{318E}'), ('\u{AC00}', '\u{D7A3}')];

/// Bopomofo, as `youtu` lists it.
pub(super) const YOUTU_BOPOMOFO: Ranges = &[('\u{3105}', '\u{312F}')];

/// Punctuation of the east, as `youtu` lists it.
pub(super) const YOUTU_PUNCTUATION: Ranges = &[
    ('\u{2014}', '\u{2014}'),
    ('\u{2018}', '\u{2019}'),
    ('\u{201C}', '\u{201D}'),
    ('\u{2026}', '\u{2026}'),
    ('\u{3001}', '\u{303F}'),
    ('\u{FE30}', '\u{FE4F}'),
    ('\u{FF01}', '\u{FF01}'),
    ('\u{FF0C}', '\u{FF0C}'),
    ('\u{FF1A}', '\u{FF1B}'),
];

/// The letters of `deepseek-llm`: those of the scripts that have case.
pub(super) const DEEPSEEK_LETTERS: Ranges = &[
    ('\u{41}', '\u{5A}'),
    ('\u{61}', '\u{7A}'),
    ('\u{B5}', '\u{B5}'),
    ('\u{C0}', '\u{D6}'),
    ('\u{D8}', '\u{F6}'),
    ('\u{F8}', '\u{1BA}'),
    ('\u{1BC}', '\u{1BF}'),
    ('\u{1C4}', '\u{293}'),
    ('\u{295}', '\u{2AF}'),
    ('\u{370}', '\u{373}'),
    ('\u{376}', '\u{376}'),
    ('\u{377}', '\u{377}'),
    ('\u{37B}', '\u{37D}'),
    ('\u{37F}', '\u{37F}'),
    ('\u{386}', '\u{386}'),
    ('\u{388}', '\u{38A}'),
    ('\u{38C}', '\u{38C}'),
    ('\u{38E}', '\u{3A1}'),
    ('\u{3A3}', '\u{3F5}'),
    ('\u{3F7}', '\u{481}'),
    ('\u{48A}', '\u{52F}'),
    ('\u{531}', '\u{556}'),
    ('\u{10A0}', '\u{10C5}'),
    ('\u{13A0}', '\u{13F5}'),
    ('\u{13F8}', '\u{13FD}'),
    ('\u{1C90}', '\u{1CBA}'),
    ('\u{1CBD}', '\u{1CBF}'),
    ('\u{1D00}', '\u{1D2B}'),
    ('\u{1D6B}', '\u{1D77}'),
    ('\u{1D79}', '\u{1D9A}'),
    ('\u{1E00}', '\u{1F15}'),
    ('\u{1F18}', '\u{1F1D}'),
    ('\u{1F20}', '\u{1F45}'),
    ('\u{1F48}', '\u{1F4D}'),
    ('\u{1F50}', '\u{1F57}'),
    ('\u{1F59}', '\u{1F59}'),
    ('\u{1F5B}', '\u{1F5B}'),
    ('\u{1F5D}', '\u{1F5D}'),
    ('\u{1F5F}', '\u{1F7D}'),
    ('\u{1F80}', '\u{1FB4}'),
    ('\u{1FB6}', '\u{1FBC}'),
    ('\u{1FBE}', '\u{1FBE}'),
    ('\u{1FC2}', '\u{1FC4}'),
    ('\u{1FC6}', '\u{1FCC}'),
    ('\u{1FD0}', '\u{1FD3}'),
    ('\u{1FD6}', '\u{1FDB}'),
    ('\u{1FE0}', '\u{1FEC}'),
    ('\u{1FF2}', '\u{1FF4}'),
    ('\u{1FF6}', '\u{1FFC}'),
    ('\u{2102}', '\u{2102}'),
    ('\u{2107}', '\u{2107}'),
    ('\u{210A}', '\u{2113}'),
    ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211D}'),
    ('\u{2124}', '\u{2124}'),
    ('\u{2126}', '\u{2126}'),
    ('\u{2128}', '\u{2128}'),
    ('\u{212A}', '\u{212D}'),
    ('\u{212F}', '\u{2134}'),
    ('\u{2139}', '\u{2139}'),
    ('\u{213C}', '\u{213F}'),
    ('\u{2145}', '\u{2149}'),
    ('\u{214E}', '\u{214E}'),
    ('\u{2183}', '\u{2183}'),
    ('\u{2184}', '\u{2184}'),
    ('\u{2C00}', '\u{2C7B}'),
    ('\u{2C7E}', '\u{2CE4}'),
    ('\u{2CEB}', '\u{2CEE}'),
    ('\u{2CF2}', '\u{2CF2}'),
    ('\u{2CF3}', '\u{2CF3}'),
    ('\u{A640}', '\u{A66D}'),
    ('\u{A680}', '\u{A69B}'),
    ('\u{A722}', '\u{A76F}'),
    ('\u{A771}', '\u{A787}'),
    ('\u{A78B}', '\u{A78E}'),
    ('\u{AB70}', '\u{ABBF}'),
    ('\u{FB00}', '\u{FB06}'),
    ('\u{FB13}', '\u{FB17}'),
    ('\u{FF21}', '\u{FF3A}'),
    ('\u{FF41}', '\u{FF5A}'),
    ('\u{10400}', '\u{1044F}'),
    ('\u{104B0}', '\u{104D3}'),
    ('\u{104D8}', '\u{104FB}'),
    ('\u{10C80}', '\u{10CB2}'),
    ('\u{10CC0}', '\u{10CF2}'),
    ('\u{118A0}', '\u{118DF}'),
    ('\u{1E900}', '\u{1E943}'),
];

/// `\p{Script=Han}`.
pub(super) const HAN: Ranges = &[
    ('\u{2E80}', '\u{2E99}'),
    ('\u{2E9B}', '\u{2EF3}'),
    ('\u{2F00}', '\u{2FD5}'),
    ('\u{3005}', '\u{3005}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303B}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{F900}', '\u{FA6D}'),
    ('\u{FA70}', '\u{FAD9}'),
    ('\u{16FE2}', '\u{16FE3}'),
    ('\u{16FF0}', '\u{16FF6}'),
    ('\u{20000}', '\u{2A6DF}'),
    ('\u{2A700}', '\u{2B81E}'),
    ('\u{2B820}', '\u{2CEAD}'),
    ('\u{2CEB0}', '\u{2EBE0}'),
    ('\u{2EBF0}', '\u{2EE5D}'),
    ('\u{2F800}', '\u{2FA1D}'),
    ('\u{30000}', '\u{3134A}'),
    ('\u{31350}', '\u{33479}'),
];

/// Scripts without spaces between words, as `afmoe` lists them.
pub(super) const AFMOE_ASIAN: Ranges = &[
    ('\u{E40}', '\u{E7F}'),
    ('\u{E80}', '\u{EFF}'),
    ('\u{1000}', '\u{109F}'),
    ('\u{1100}', '\u{11FF}'),
    ('\u{1780}', '\u{17FF}'),
    ('\u{2F00}', '\u{2FDF}'),
    ('\u{3040}', '\u{309F}'),
    ('\u{30A0}', '\u{30FF}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{A9E0}', '\u{A9FF}'),
    ('\u{AA60}', '\u{AA7F}'),
    ('\u{AC00}', '\u{D7AF}'),
    ('\u{F900}', '\u{FAFF}'),
    ('\u{FF65}', '\u{FF9F}'),
];
