#include "harness.hpp"

int main(int count, char** words) { return harness::run(count > 1 ? words[1] : ""); }
