#include "program/plan/csv.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include "base/check.h"
#include "program/plan/validate.h"

namespace fuseloom::program::plan {
namespace {

enum class Column : uint8_t {
  Id,
  Lower,
  Upper,
  Size,
  Alignment,
  PreferredSize,
  Gaps,
  MayShareWith,
  Offset,
  InPlaceOf,
  GrantedSize,
};

struct ColumnName {
  Column column;
  std::string_view name;
  bool required;
};

constexpr ColumnName kColumns[] = {
    {Column::Id, "id", true},
    {Column::Lower, "lower", true},
    {Column::Upper, "upper", true},
    {Column::Size, "size", true},
    {Column::Alignment, "alignment", false},
    {Column::PreferredSize, "preferred_size", false},
    {Column::Gaps, "gaps", false},
    {Column::MayShareWith, "may_share_with", false},
    {Column::Offset, "offset", false},
    {Column::InPlaceOf, "in_place_of", false},
    {Column::GrantedSize, "granted_size", false},
};

// A record of the file: its fields, unquoted, and the line on which it begins.
struct Record {
  int64_t line = 1;
  std::vector<std::string> fields;
};

// Text that goes into a message: hostile bytes escaped, long fields cut.
std::string shown(std::string_view field) {
  constexpr size_t kMost = 40;
  std::string text = "'";
  for (const char c : field.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text + (field.size() > kMost ? "...'" : "'");
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view file) : text_(text), file_(file) {
    if (text_.starts_with("\xef\xbb\xbf")) position_ = 3;
  }

  // The next record that is not a blank line.
  std::optional<Record> next() {
    while (position_ < text_.size()) {
      if (end_of_line()) continue;
      return record();
    }
    return std::nullopt;
  }

  [[noreturn]] void fail(int64_t line, std::string_view what) const {
    throw UserError(fmt::format("{}:{}: {}", file_, line, what));
  }

 private:
  // Consumes a line end, if there is one here.
  bool end_of_line() {
    size_t end = position_;
    if (end < text_.size() && text_[end] == '\r') ++end;
    if (end >= text_.size() || text_[end] != '\n') return false;
    position_ = end + 1;
    ++line_;
    return true;
  }

  Record record() {
    Record record{line_, {}};
    while (true) {
      record.fields.push_back(position_ < text_.size() && text_[position_] == '"' ? quoted() : plain());
      if (position_ >= text_.size() || end_of_line()) return record;
      if (text_[position_] != ',')
        fail(line_, fmt::format("expected ',' or the end of the line after a field, got {}",
                                shown(text_.substr(position_, 1))));
      ++position_;
    }
  }

  std::string plain() {
    const size_t start = position_;
    while (position_ < text_.size() && text_[position_] != ',' && text_[position_] != '\n') {
      if (text_[position_] == '"')
        fail(line_, fmt::format("expected a field quoted as a whole or not at all, got {}",
                                shown(text_.substr(start, position_ + 1 - start))));
      ++position_;
    }
    if (position_ < text_.size() && text_[position_] == '\n' && position_ > start && text_[position_ - 1] == '\r')
      --position_;
    // Blanks around an unquoted field are layout.
    std::string_view field = text_.substr(start, position_ - start);
    while (!field.empty() && (field.front() == ' ' || field.front() == '\t')) field.remove_prefix(1);
    while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted() {
    const int64_t first_line = line_;
    std::string field;
    for (++position_; position_ < text_.size(); ++position_) {
      if (text_[position_] == '\n') ++line_;
      if (text_[position_] == '"') {
        if (position_ + 1 >= text_.size() || text_[position_ + 1] != '"') {
          ++position_;
          return field;
        }
        ++position_;
      }
      field += text_[position_];
    }
    fail(first_line, fmt::format("expected a closing '\"' for the field {}, got the end of the file", shown(field)));
  }

  std::string_view text_, file_;
  size_t position_ = 0;
  int64_t line_ = 1;
};

std::optional<int64_t> integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) result.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::string quote_field(std::string_view field) {
  const bool plain = field.find_first_of(",\"\r\n\t") == std::string_view::npos && !field.starts_with(' ') &&
                     !field.ends_with(' ') && !field.starts_with("\xef\xbb\xbf");
  if (plain) return std::string(field);
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : reader_(text, file) {}

  PlanFile parse() {
    // 1. The first line names the columns.
    const std::optional<Record> header = reader_.next();
    if (!header) reader_.fail(1, "expected a line of column names (id,lower,upper,size,...), got an empty file");
    for (const std::string& name : header->fields) columns_.push_back(column_named(*header, name));
    for (const ColumnName& column : kColumns)
      if (column.required && !has(column.column))
        reader_.fail(header->line, fmt::format("expected a column '{}', got none", column.name));
    for (const Column column : {Column::InPlaceOf, Column::GrantedSize})
      if (has(column) && !has(Column::Offset))
        reader_.fail(header->line, fmt::format("expected a column 'offset' beside '{}', got none", name_of(column)));

    // 2. One buffer a line. Ids may be used before they are defined, so references wait.
    PlanFile file;
    Solution solution;
    std::vector<Record> records;
    while (std::optional<Record> record = reader_.next()) {
      if (record->fields.size() != columns_.size())
        reader_.fail(record->line, fmt::format("expected {} fields, got {}", columns_.size(), record->fields.size()));
      add_buffer(*record, file.problem, solution);
      records.push_back(std::move(*record));
    }
    // 3. References between buffers.
    for (size_t i = 0; i < records.size(); ++i) resolve(records[i], file.problem.buffers[i], solution);

    if (has(Column::Offset)) file.solution = finish(file.problem, std::move(solution));
    // What a single line cannot show (overflowing sums, alternatives that do not fit together) has no line to blame.
    require_well_formed(file.problem);
    return file;
  }

 private:
  static std::string_view name_of(Column column) { return kColumns[static_cast<size_t>(column)].name; }

  bool has(Column column) const { return std::find(columns_.begin(), columns_.end(), column) != columns_.end(); }

  Column column_named(const Record& header, std::string_view name) const {
    for (const ColumnName& column : kColumns) {
      if (column.name != name) continue;
      if (has(column.column)) reader_.fail(header.line, fmt::format("expected column '{}' once, got it twice", name));
      return column.column;
    }
    std::string known;
    for (const ColumnName& column : kColumns) known += (known.empty() ? "" : ", ") + std::string(column.name);
    reader_.fail(header.line, fmt::format("expected column names out of {}, got {}", known, shown(name)));
  }

  std::string_view field(const Record& record, Column column) const {
    const auto at = std::find(columns_.begin(), columns_.end(), column);
    return at == columns_.end() ? std::string_view() : record.fields[static_cast<size_t>(at - columns_.begin())];
  }

  int64_t number(const Record& record, Column column, int64_t least) const {
    const std::string_view text = field(record, column);
    const std::optional<int64_t> value = integer(text);
    if (!value || *value < least)
      reader_.fail(record.line,
                   fmt::format("column '{}': expected an integer{}, got {}", name_of(column),
                               least == kNoLeast ? "" : fmt::format(" of at least {}", least), shown(text)));
    return *value;
  }

  void add_buffer(const Record& record, Problem& problem, Solution& solution) {
    Buffer buffer;
    buffer.id = std::string(field(record, Column::Id));
    buffer.lower = number(record, Column::Lower, kNoLeast);
    buffer.upper = number(record, Column::Upper, kNoLeast);
    buffer.size = number(record, Column::Size, 0);
    if (buffer.id.empty()) reader_.fail(record.line, "column 'id': expected a name, got an empty field");
    const auto [at, fresh] = seen_.emplace(buffer.id, std::pair(static_cast<int32_t>(seen_.size()), record.line));
    if (!fresh)
      reader_.fail(record.line, fmt::format("column 'id': expected a name not used before, got {}, which is on line {}",
                                            shown(buffer.id), at->second.second));
    if (buffer.upper <= buffer.lower)
      reader_.fail(record.line,
                   fmt::format("column 'upper': expected more than lower = {}, got {}", buffer.lower, buffer.upper));
    if (!field(record, Column::Alignment).empty()) buffer.alignment = number(record, Column::Alignment, 1);
    if (!field(record, Column::PreferredSize).empty()) buffer.preferred_size = number(record, Column::PreferredSize, 0);
    for (const std::string_view word : words(field(record, Column::Gaps))) buffer.gaps.push_back(gap(record, word));
    int64_t after = buffer.lower;
    for (const Interval& gap : buffer.gaps) {
      if (gap.lower <= after || gap.upper <= gap.lower || gap.upper >= buffer.upper)
        reader_.fail(record.line,
                     fmt::format("column 'gaps': expected ascending gaps that do not touch, strictly inside [{}, {}), "
                                 "got {}-{}",
                                 buffer.lower, buffer.upper, gap.lower, gap.upper));
      after = gap.upper;
    }
    if (has(Column::Offset)) {
      solution.offsets.push_back(number(record, Column::Offset, 0));
      solution.in_place_of.push_back(-1);
      solution.sizes.push_back(field(record, Column::GrantedSize).empty() ? buffer.size
                                                                          : number(record, Column::GrantedSize, 0));
    }
    problem.buffers.push_back(std::move(buffer));
  }

  Interval gap(const Record& record, std::string_view word) const {
    // The separator is the first '-' that is not a sign.
    const size_t dash = word.find('-', 1);
    if (dash != std::string_view::npos) {
      const std::optional<int64_t> lower = integer(word.substr(0, dash)), upper = integer(word.substr(dash + 1));
      if (lower && upper) return {*lower, *upper};
    }
    reader_.fail(record.line, fmt::format("column 'gaps': expected LOWER-UPPER, got {}", shown(word)));
  }

  int32_t index_of(const Record& record, Column column, std::string_view id) const {
    const auto at = seen_.find(std::string(id));
    if (at == seen_.end())
      reader_.fail(record.line,
                   fmt::format("column '{}': expected the id of a buffer, got {}", name_of(column), shown(id)));
    return at->second.first;
  }

  void resolve(const Record& record, Buffer& buffer, Solution& solution) const {
    for (const std::string_view id : words(field(record, Column::MayShareWith)))
      buffer.may_share_with.push_back(index_of(record, Column::MayShareWith, id));
    const std::string_view donor = field(record, Column::InPlaceOf);
    if (!donor.empty()) {
      const int32_t self = index_of(record, Column::Id, buffer.id);
      solution.in_place_of[static_cast<size_t>(self)] = index_of(record, Column::InPlaceOf, donor);
    }
  }

  Solution finish(const Problem& problem, Solution solution) const {
    for (size_t i = 0; i < problem.buffers.size(); ++i) {
      int64_t top = 0;
      FL_REQUIRE(!__builtin_add_overflow(solution.offsets[i], solution.sizes[i], &top),
                 "memory plan: buffer '{}' ends beyond the largest address: offset {}, size {}", problem.buffers[i].id,
                 solution.offsets[i], solution.sizes[i]);
      if (solution.sizes[i] > 0) solution.height = std::max(solution.height, top);
    }
    if (!has(Column::InPlaceOf)) solution.in_place_of.clear();
    if (!has(Column::GrantedSize)) solution.sizes.clear();
    return solution;
  }

  static constexpr int64_t kNoLeast = INT64_MIN;

  Reader reader_;
  std::vector<Column> columns_;
  std::unordered_map<std::string, std::pair<int32_t, int64_t>> seen_;  // id → index, line
};

}  // namespace

PlanFile parse_csv(std::string_view text, std::string_view file) { return Parser(text, file).parse(); }

PlanFile read_csv(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  FL_REQUIRE(stream.good(), "{}: cannot open the file; expected a readable CSV file of buffers", path);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  FL_REQUIRE(!stream.bad(), "{}: reading the file failed", path);
  return parse_csv(text, path);
}

std::string to_csv(const Problem& problem, const Solution* solution) {
  const std::vector<Buffer>& buffers = problem.buffers;
  const auto any = [&](auto&& used) { return std::any_of(buffers.begin(), buffers.end(), used); };
  const bool alignment = any([&](const Buffer& b) { return alignment_of(problem, b) != 1; });
  const bool preferred = any([](const Buffer& b) { return b.preferred_size != 0; });
  const bool gaps = any([](const Buffer& b) { return !b.gaps.empty(); });
  const bool share = any([](const Buffer& b) { return !b.may_share_with.empty(); });
  const bool in_place = solution && !solution->in_place_of.empty();
  const bool granted = solution && !solution->sizes.empty();

  std::string text = "id,lower,upper,size";
  if (alignment) text += ",alignment";
  if (preferred) text += ",preferred_size";
  if (gaps) text += ",gaps";
  if (share) text += ",may_share_with";
  if (solution) text += ",offset";
  if (in_place) text += ",in_place_of";
  if (granted) text += ",granted_size";
  text += '\n';
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    text += fmt::format("{},{},{},{}", quote_field(buffer.id), buffer.lower, buffer.upper, buffer.size);
    if (alignment) text += fmt::format(",{}", alignment_of(problem, buffer));
    if (preferred) text += fmt::format(",{}", buffer.preferred_size);
    if (gaps) {
      text += ',';
      for (size_t g = 0; g < buffer.gaps.size(); ++g)
        text += fmt::format("{}{}-{}", g > 0 ? " " : "", buffer.gaps[g].lower, buffer.gaps[g].upper);
    }
    if (share) {
      std::string ids;
      for (const int32_t donor : buffer.may_share_with) {
        const std::string& id = buffers[static_cast<size_t>(donor)].id;
        FL_REQUIRE(id.find(' ') == std::string::npos,
                   "memory plan: the id '{}' is listed in may_share_with, expected one without spaces to write it", id);
        ids += (ids.empty() ? "" : " ") + id;
      }
      text += ',' + quote_field(ids);
    }
    if (solution) text += fmt::format(",{}", solution->offsets[i]);
    if (in_place) {
      const int32_t donor = solution->in_place_of[i];
      text += ',' + (donor < 0 ? std::string() : quote_field(buffers[static_cast<size_t>(donor)].id));
    }
    if (granted) text += fmt::format(",{}", solution->sizes[i]);
    text += '\n';
  }
  return text;
}

}  // namespace fuseloom::program::plan
