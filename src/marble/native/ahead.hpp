// Rows that will be wanted soon, fetched into the cache while something else is computed.
//
// Projected rows lie 17 KB apart, where no processor looks ahead by itself: every one of them would be waited for.
#pragma once

namespace marble {

//! Blocks of rows, fetched a few rows at a time in the order they were given
class Ahead {
public:
    //! `count` rows of `columns` numbers, `stride` numbers apart; there are at most MOST blocks
    template <typename T>
    void want(const T* data, long stride, long count, long columns) {
        blocks_[wanted_++] = {reinterpret_cast<const char*>(data), stride * long(sizeof(T)), count,
                              columns * long(sizeof(T))};
    }

    //! Ask for the next rows
    void operator()() {
        for (int n = 0; n < AT_ONCE && at_ < wanted_; n++) {
            const Block& block = blocks_[at_];
            const char* row = block.data + row_ * block.stride;
            for (long byte = 0; byte < block.bytes; byte += LINE) __builtin_prefetch(row + byte, 0, 2);
            if (++row_ == block.count) at_++, row_ = 0;
        }
    }

private:
    static constexpr int MOST = 8, AT_ONCE = 8;
    static constexpr long LINE = 64;
    struct Block {
        const char* data;
        long stride, count, bytes;
    };
    Block blocks_[MOST];
    int wanted_ = 0, at_ = 0;
    long row_ = 0;
};

//! Nothing will be wanted
struct NothingAhead {
    void operator()() {}
};

}  // namespace marble
